"""Bodies of requests that steer a pool. As everywhere, `null` counts as absent."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from serving.api.strict import MAX_INT, StrictModel, admitting
from serving.contracts.guardrails import (
    GUARDRAIL_METRICS,
    HIGHEST_BOUND_MS,
    LONGEST_WATCH_SECONDS,
    LONGEST_WINDOW_SECONDS,
    SHORTEST_WATCH_SECONDS,
    SHORTEST_WINDOW_SECONDS,
    GuardrailTerms,
)

_REASON = "a text of up to 500 characters"
_METRICS = "one of " + ", ".join(GUARDRAIL_METRICS)


class GuardrailBody(StrictModel):
    """What a change goes back by, all by itself."""

    metric: str = admitting(_METRICS, about="What is watched", default=..., max_length=40)
    bound: float = admitting(
        f"a number from 0 to {HIGHEST_BOUND_MS} (ms), of a ratio from 0 to 1",
        about="The change goes back where the metric is above it for the whole window",
        default=...,
        ge=0,
        le=HIGHEST_BOUND_MS,
    )
    window_seconds: float | None = admitting(
        f"a number from {SHORTEST_WINDOW_SECONDS} to {LONGEST_WINDOW_SECONDS}; 60 where left out",
        about="For how long the bound must be missed without a break",
        ge=SHORTEST_WINDOW_SECONDS,
        le=LONGEST_WINDOW_SECONDS,
    )
    watch_seconds: float | None = admitting(
        f"a number from {SHORTEST_WATCH_SECONDS} to {LONGEST_WATCH_SECONDS}; 600 where left out",
        about="For how long the change is watched",
        ge=SHORTEST_WATCH_SECONDS,
        le=LONGEST_WATCH_SECONDS,
    )

    def terms(self) -> GuardrailTerms:
        """The same as the services take it."""
        return GuardrailTerms(**self.model_dump(exclude_none=True))


class CanaryBody(StrictModel):
    """On which engine a change is tried first."""

    engine: str | None = admitting(
        "the id of an engine of the pool that takes work; the first by name where left out",
        about="The engine that tries the change",
        min_length=1,
        max_length=200,
    )


class TunablesChange(StrictModel):
    """`PATCH /ops/v1/pools/{pool}/tunables`."""

    model_config = ConfigDict(
        json_schema_extra={
            "example": {
                "changes": {"max_running": 48},
                "reason": "the batch is full for minutes",
                "guardrail": {"metric": "ttft_p95", "bound": 800, "window_seconds": 30},
                "canary": {"engine": "host-cpu-1a2b3c"},
            }
        }
    )

    changes: dict[str, Any] = admitting("an object of tunables and their new values", default=..., min_length=1)
    reason: str | None = admitting(_REASON, about="Why", max_length=500)
    based_on: int | None = admitting(
        "the number of a version", about="Refuse the change where another version is in force by now", ge=1
    )
    guardrail: GuardrailBody | None = admitting(
        '{"metric": …, "bound": …}', about="Take the change back where a bound is missed for too long"
    )
    canary: CanaryBody | None = admitting(
        "{} or an object with engine, for a pool of at least two engines that take work",
        about="Let one engine run the change until it is taken to all, or back; its guardrail watches that engine",
    )


class Rollback(StrictModel):
    """`POST /ops/v1/pools/{pool}/tunables/rollback`."""

    version: int = admitting("the number of a stored version", default=..., ge=1, le=MAX_INT)
    reason: str | None = admitting(_REASON, about="Why", max_length=500)
    based_on: int | None = admitting(
        "the number of a version", about="Refuse to roll back where another version is in force by now", ge=1
    )


class CanaryEnd(StrictModel):
    """`POST /ops/v1/pools/{pool}/canary/promote` and `…/withdraw`."""

    model_config = ConfigDict(json_schema_extra={"example": {"version": 12, "reason": "TTFT p95 halved"}})

    version: int = admitting(
        "the number of the version that is being tried",
        about="Refused where it no longer is",
        default=...,
        ge=1,
        le=MAX_INT,
    )
    reason: str | None = admitting(_REASON, about="Why", max_length=500)
