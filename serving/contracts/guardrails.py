"""A guardrail's terms: what a change is watched by after it was stored."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from serving.contracts.errors import InvalidValue

GUARDRAIL_METRICS: Mapping[str, str] = {
    "ttft_p95": "TTFT p95",
    "itl_p95": "ITL p95",
    "queue_p95": "Queue time p95",
    "e2e_p95": "E2E p95",
    "error_ratio": "Failed requests",
    "refused_ratio": "Refused requests",
}
"""What may be watched, by the names of `serving.telemetry.conditions.METRICS`. A `…_p95` is in milliseconds, a ratio a
share of 1, both over the last minute."""

HIGHEST_BOUND_MS = 3_600_000
SHORTEST_WINDOW_SECONDS, LONGEST_WINDOW_SECONDS = 5, 3600
SHORTEST_WATCH_SECONDS, LONGEST_WATCH_SECONDS = 60, 86_400


class GuardrailTerms(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change goes back by itself where `metric` is above `bound` for `window_seconds` without a break, within
    `watch_seconds` of its storing. `bound` is in the metric's own unit."""

    metric: str
    bound: float
    window_seconds: float = 60.0
    watch_seconds: float = 600.0

    def check(self) -> None:
        """Raise `InvalidValue`, naming field, value and bounds, for what cannot be watched."""
        if self.metric not in GUARDRAIL_METRICS:
            raise InvalidValue("guardrail metric", self.metric, "one of " + ", ".join(GUARDRAIL_METRICS))
        highest = 1 if is_share(self.metric) else HIGHEST_BOUND_MS
        _check_within("guardrail bound", self.bound, low=0, high=highest)
        _check_within("guardrail window", self.window_seconds, low=SHORTEST_WINDOW_SECONDS, high=LONGEST_WINDOW_SECONDS)
        _check_within("guardrail watch", self.watch_seconds, low=SHORTEST_WATCH_SECONDS, high=LONGEST_WATCH_SECONDS)
        if self.window_seconds > self.watch_seconds:
            raise InvalidValue("guardrail window", self.window_seconds, f"at most its watch, {self.watch_seconds:g} s")


def is_share(metric: str) -> bool:
    """Whether the metric is a share of 1; otherwise it is in milliseconds."""
    return metric.endswith("_ratio")


def _check_within(field: str, value: float, *, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidValue(field, value, f"a number from {low} to {high}")
