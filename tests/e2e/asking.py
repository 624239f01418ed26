"""Streamed requests of an open loop, each with the moments that its client saw."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
import time
from typing import Any

import httpx


@dataclasses.dataclass(slots=True)
class Seen:
    """What became of one request, in seconds since it was sent. `code` is the error's; empty where it was served."""

    sent_at: float
    status: int = 0
    code: str = ""
    answered_seconds: float = 0.0
    ttft_seconds: float | None = None
    num_tokens: int = 0
    retry_after: str | None = None
    predicted_seconds: float | None = None

    @property
    def is_served(self) -> bool:
        """Whether it came to its own end."""
        return self.status == 200 and not self.code


async def ask(client: httpx.AsyncClient, body: dict[str, Any], *, key: str) -> Seen:
    """Send one streamed completion and read it to its end."""
    seen = Seen(sent_at=time.monotonic())
    headers = {"Authorization": f"Bearer {key}"}
    async with client.stream("POST", "/v1/completions", json={**body, "stream": True}, headers=headers) as response:
        seen.status = response.status_code
        seen.retry_after = response.headers.get("retry-after")
        if response.status_code != 200:
            seen.code = json.loads(await response.aread())["error"]["code"]
        else:
            async for line in response.aiter_lines():
                _take(seen, line)
    seen.answered_seconds = time.monotonic() - seen.sent_at
    return seen


def _take(seen: Seen, line: str) -> None:
    if not line.startswith("data: {"):
        return
    event = json.loads(line[6:])
    if "error" in event:
        seen.code = event["error"]["code"]
        return
    seen.num_tokens += 1
    if seen.ttft_seconds is None:
        seen.ttft_seconds = time.monotonic() - seen.sent_at


def new_client(url: str) -> httpx.AsyncClient:
    """A client with as many connections as it takes."""
    return httpx.AsyncClient(base_url=url, timeout=300, limits=httpx.Limits(max_connections=None))


def percentile(values: list[float], percent: float) -> float:
    """The smallest value that so many percent do not exceed; not a number where there are none."""
    ordered = sorted(values)
    if not ordered:
        return float("nan")
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


async def sleep_until(moment: float) -> None:
    """Wait for a moment of the monotonic clock."""
    await asyncio.sleep(max(0.0, moment - time.monotonic()))
