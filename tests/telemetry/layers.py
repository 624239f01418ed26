"""Channel layers as the settings make them, and one that only a test sees through."""

from __future__ import annotations

import asyncio
from typing import Any

from channels_redis.pubsub import RedisPubSubChannelLayer
from django.conf import settings


def make_layer(url: str) -> Any:
    """A process's own layer, as production's, over the Redis at `url`."""
    config = settings.CHANNEL_LAYERS["default"]["CONFIG"]
    hosts = [{**host, "address": url} for host in config["hosts"]]
    return RedisPubSubChannelLayer(**{**config, "hosts": hosts})


class DeafLayer:
    """A layer that takes everything and delivers nothing while it is `deaf`; otherwise only what is sent to oneself."""

    def __init__(self, *, deaf: bool) -> None:
        self.deaf = deaf
        self.num_channels = 0
        self.num_sent = 0
        self.num_received = 0
        self.groups: set[str] = set()
        self._messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def new_channel(self, _prefix: str) -> str:
        self.num_channels += 1
        return f"channel-{self.num_channels}"

    async def group_add(self, group: str, _channel: str) -> None:
        self.groups.add(group)

    async def group_discard(self, group: str, _channel: str) -> None:
        self.groups.discard(group)

    async def send(self, _channel: str, message: dict[str, Any]) -> None:
        self.num_sent += 1
        if not self.deaf:
            self._messages.put_nowait(message)

    async def receive(self, _channel: str) -> dict[str, Any]:
        message = await self._messages.get()
        self.num_received += 1
        return message

    async def flush(self) -> None:
        self.groups.clear()
