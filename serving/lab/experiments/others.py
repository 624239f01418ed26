"""What a pool's other traffic came to while an experiment plays: what its guardrail goes by. Blocking."""

from __future__ import annotations

import datetime
from collections.abc import Collection, Mapping
from typing import Final

import numpy as np

from serving.telemetry.conditions import Reading
from serving.telemetry.request_rows import RequestFilter, RequestRow
from serving.telemetry.request_selectors import iterate_requests

WINDOW_SECONDS: Final = 60.0
_MOST_ROWS: Final = 5000
_P95_OF: Final = {"queue": "queue_seconds", "ttft": "ttft_seconds", "itl": "itl_seconds", "e2e": "e2e_seconds"}


def read_others(pool: str, *, own_key_prefixes: Collection[str], now: datetime.datetime) -> dict[str, Reading]:
    """The guardrail's metrics over the requests of the last minute (at most the 5,000 newest) that were asked with
    none of the experiment's own keys, from the log of requests. Percentiles are in milliseconds; an ITL is the mean of
    one answer. A metric of which nothing is known is left out."""
    since = now - datetime.timedelta(seconds=WINDOW_SECONDS)
    rows = iterate_requests(RequestFilter(pool=pool, since=since), limit=_MOST_ROWS)
    return readings_of_rows([row for row in rows if row.key_prefix not in own_key_prefixes])


def readings_of_rows(rows: Collection[RequestRow]) -> dict[str, Reading]:
    """The guardrail's metrics over these requests."""
    readings: dict[str, Reading] = {}
    for name, field in _P95_OF.items():
        seconds = [value for row in rows if (value := getattr(row, field)) is not None]
        if seconds:
            readings[f"{name}_p95"] = Reading(1000 * float(np.percentile(seconds, 95)), len(seconds))
    return {**readings, **_shares(rows)}


def _shares(rows: Collection[RequestRow]) -> Mapping[str, Reading]:
    """Of those that were not given up."""
    outcomes = [row.outcome for row in rows if row.outcome in ("finished", "refused", "failed")]
    if not outcomes:
        return {}
    return {
        "error_ratio": Reading(outcomes.count("failed") / len(outcomes), len(outcomes)),
        "refused_ratio": Reading(outcomes.count("refused") / len(outcomes), len(outcomes)),
    }
