"""A process that watches a pool as a web process does, and prints each frame: `python -m tests.telemetry.feed_process
URL`."""

from __future__ import annotations

import asyncio
import sys

from serving.telemetry.feed import LiveFeed
from tests.telemetry.conftest import POOL
from tests.telemetry.layers import make_layer


async def watch(url: str) -> None:
    feed = LiveFeed(make_layer(url))
    await feed.start()
    watcher = feed.watch(POOL)
    while True:
        frame = await watcher.next()
        print(frame.sequence, frame.text, flush=True)


if __name__ == "__main__":
    asyncio.run(watch(sys.argv[1]))
