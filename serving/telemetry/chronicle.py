"""The stream in which what is to be kept waits for a job that stores it: stretches of time, and events."""

from __future__ import annotations

from typing import Any

from serving.contracts import keys

_MAX_ENTRIES = 20_000
"""Two days of a pool's stretches: so long may the jobs be away."""


def append(pipe: Any, entry: bytes) -> None:
    """Queue the writing of an encoded entry in a Redis pipeline, async or blocking."""
    pipe.xadd(keys.chronicle(), {keys.FIELD: entry}, maxlen=_MAX_ENTRIES, approximate=True)
