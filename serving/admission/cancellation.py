"""Cancellations: those that the Redis client loses, and those that have to wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


def honour_cancellation() -> None:
    """Raise the cancellation of this task that the Redis client has swallowed; to be called after each of its answers.

    The client sends with `asyncio.wait_for`, which in Python 3.11 returns a result where result and cancellation come
    together.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def to_its_end(work: Awaitable[T]) -> T:
    """Do what must not be left half done: a cancellation of this task that comes meanwhile is raised afterwards.

    For what ends by itself within seconds. Errors of `work` are raised unless there was a cancellation.
    """
    task = asyncio.ensure_future(work)
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            is_cancelled = True
    if is_cancelled:
        task.cancelled() or task.exception()
        raise asyncio.CancelledError
    return task.result()
