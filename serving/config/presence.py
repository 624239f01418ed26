"""How a process makes itself known: its sign of life, and the last lines of its log."""

from __future__ import annotations

import logging
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from django.conf import settings
from redis import Redis

from serving.telemetry.processes import ProcessBeacon, ProcessKind
from serving.telemetry.recent_logs import RecentLogs


def keep_log() -> RecentLogs:
    """Keep, from now on, the last records that reach the root logger."""
    logs = RecentLogs()
    logging.getLogger().addHandler(logs)
    return logs


@contextmanager
def presence(
    kind: ProcessKind,
    *,
    name: str = "",
    process_id: str = "",
    doing: Callable[[], str] = str,
    logs: RecentLogs | None = None,
) -> Iterator[ProcessBeacon]:
    """Make this process known while the block runs, with what is logged, from `keep_log` on where that was called
    before.

    `name` is the kind where none is given. Redis need not be there.
    """
    logs = keep_log() if logs is None else logs
    beacon = ProcessBeacon(
        Redis.from_url(settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=2),
        process_id=process_id or f"{kind}-{socket.gethostname()}-{uuid.uuid4().hex[:12]}",
        kind=kind,
        name=name or kind,
        restarts=settings.FOOTPLATE_RESTARTS,
        logs=logs,
        doing=doing,
    )
    try:
        with beacon:
            yield beacon
    finally:
        logging.getLogger().removeHandler(logs)
