"""Blocking code from async code: on a thread, with a database connection that is given back afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from channels.db import database_sync_to_async

T = TypeVar("T")
P = ParamSpec("P")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `function` gives, called on one of the event loop's threads."""
    # Not thread-sensitive: one slow query must not hold up every other request.
    result: T = await database_sync_to_async(function, thread_sensitive=False)(*args, **kwargs)
    return result
