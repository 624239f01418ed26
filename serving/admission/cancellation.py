"""Cancellations that the Redis client loses."""

from __future__ import annotations

import asyncio


def honour_cancellation() -> None:
    """Raise the cancellation of this task that the Redis client has swallowed; to be called after each of its answers.

    The client sends with `asyncio.wait_for`, which in Python 3.11 returns a result where result and cancellation come
    together.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
