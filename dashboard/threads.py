"""Blocking code from async code: on a thread, with a database connection that is given back afterwards."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import ParamSpec, TypeVar

from channels.db import database_sync_to_async

T = TypeVar("T")
P = ParamSpec("P")


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What `function` gives, called on one of the event loop's threads."""
    # Not thread-sensitive: one slow query must not hold up every other page.
    result: T = await database_sync_to_async(function, thread_sensitive=False)(*args, **kwargs)
    return result


async def in_thread_of(executor: Executor, function: Callable[[], T]) -> T:
    """What `function` gives, called on a thread of `executor`. Cancelled, it stops waiting at once: a call that has not
    begun never does, one that has goes on and keeps its thread until it ends."""
    result: T = await database_sync_to_async(function, thread_sensitive=False, executor=executor)()
    return result
