"""Requests that ended, for tests of their log."""

from __future__ import annotations

import datetime
from typing import Any

from serving.contracts.ids import PoolName, RequestId
from serving.gateway.generation import Origin
from serving.gateway.observer import Ended
from serving.telemetry.models import RequestRecord
from serving.telemetry.request_log import LoggedRequest

POOL = PoolName("default")
START = datetime.datetime(2026, 3, 31, 12, tzinfo=datetime.UTC)
ORIGIN = Origin(endpoint="chat", is_streamed=True, tenant_id=7, tenant_name="acme", key_prefix="0123456789ab")


def ended(request_id: str = "req_1", **changes: Any) -> Ended:
    """One that finished, but for `changes`."""
    facts: dict[str, Any] = {
        "request_id": RequestId(request_id),
        "pool": POOL,
        "outcome": "finished:stop",
        "was_scheduled": True,
        "e2e_seconds": 2.0,
        "prompt_tokens": 30,
        "completion_tokens": 20,
        "cached_tokens": 16,
        "queue_seconds": 0.1,
        "ttft_seconds": 0.5,
        "itl_seconds": 0.075,
        "num_attempts": 1,
        "engine": "engine-1",
        "origin": ORIGIN,
    }
    return Ended(**{**facts, **changes})


def logged(request_id: str = "req_1", **changes: Any) -> LoggedRequest:
    """One that finished, as the stream has it, but for `changes`."""
    facts: dict[str, Any] = {
        "request_id": RequestId(request_id),
        "pool": POOL,
        "model": "tiny",
        "endpoint": "chat",
        "arrived_unix_seconds": START.timestamp(),
        "outcome": "finished",
        "code": "stop",
        "e2e_seconds": 2.0,
    }
    return LoggedRequest(**{**facts, **changes})


def stored(request_id: str, seconds: float = 0.0, **changes: Any) -> RequestRecord:
    """One that arrived so many seconds after `START` and finished, as the database has it, but for `changes`; not saved
    yet."""
    facts: dict[str, Any] = {
        "request_id": request_id,
        "pool": POOL,
        "model": "tiny",
        "tenant": "acme",
        "endpoint": "chat",
        "arrived_at": START + datetime.timedelta(seconds=seconds),
        "outcome": "finished",
        "code": "stop",
        "e2e_seconds": 1.0,
    }
    return RequestRecord(**{**facts, **changes})
