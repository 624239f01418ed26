"""Blocking code from async code: on a thread, with a database connection that is given back afterwards."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor
from typing import TypeVar

from channels.db import database_sync_to_async

from serving.threads import in_thread

__all__ = ["in_thread", "in_thread_of"]

T = TypeVar("T")


async def in_thread_of(executor: Executor, function: Callable[[], T]) -> T:
    """What `function` gives, called on a thread of `executor`. Cancelled, it stops waiting at once: a call that has not
    begun never does, one that has goes on and keeps its thread until it ends."""
    result: T = await database_sync_to_async(function, thread_sensitive=False, executor=executor)()
    return result
