"""`/ops/v1`: what a pool's newest version is watched by, and the engine that tries it."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
from django.http import HttpRequest, HttpResponse
from redis import Redis

from serving.api.context import author_of, services_of
from serving.api.ops import describe_version
from serving.api.replies import json_reply, number_in_query
from serving.api.steering_schemas import CanaryEnd
from serving.contracts.ids import PoolName
from serving.telemetry.tallies import outcomes_of
from serving.threads import in_thread
from serving.tuning import canaries, guardrails, selectors
from serving.tuning.canary_reading import LEAST_REQUESTS, LEAST_REQUESTS_P99, CanarySide, read_canary
from serving.tuning.living import living_engines
from serving.tuning.models import CanaryState, Guardrail, TunablesVersion

_LARGEST_NUMBER = 2**31 - 1
CALL_OFF_PARAMETERS: list[dict[str, Any]] = [
    {
        "in": "query",
        "name": "version",
        "description": "The version whose guardrail it is; the newest that has one where left out.",
        "schema": {"type": "integer", "minimum": 1, "maximum": _LARGEST_NUMBER},
    },
    {"in": "query", "name": "reason", "description": "Why.", "schema": {"type": "string", "maxLength": 500}},
]


async def show_guardrail(request: HttpRequest, pool: str) -> HttpResponse:
    """The pool's newest guardrail and what became of it; null where no version ever had one.

    `state` is `watching`, `passed`, `missed` (the version was rolled back), `superseded`, `called_off` or `stuck` (it
    was missed, and the version before would do no longer). `watches` is `pool`, or `engine` and its id while one engine
    alone tries the version: then that engine's requests count, and no others.
    """
    return json_reply(await in_thread(_read_guardrail, pool))


async def delete_guardrail(request: HttpRequest, pool: str) -> HttpResponse:
    """Call the newest guardrail off, or that of the `version` in the query: the version stays, and is no longer
    watched. Refused where it is watched no longer already."""
    newest = await in_thread(_newest_watched, pool)
    version = number_in_query(request, "version", default=newest, low=1, high=_LARGEST_NUMBER)
    reason = request.GET.get("reason", "")
    guardrail = await in_thread(guardrails.call_off, pool, version, reason=reason, author=author_of(request))
    return json_reply({"pool": pool, "guardrail": await in_thread(_describe_guardrail, guardrail)})


async def show_canary(request: HttpRequest, pool: str) -> HttpResponse:
    """The version that one engine tries, and how that engine does beside all others; null where none is tried.

    `tried` and `others` hold `intervals` (count, mean and percentiles in seconds of their requests) and `ended`
    (requests by how they ended) of the last `measured_seconds`, null where no monitor tells of them: since the canary
    began, a quarter of an hour at most. Their steps, tokens and preemptions are since it began, the rates an engine's.
    Percentiles of fewer than `least_requests` requests say little (a p99 of fewer than `least_requests_p99`).
    """
    return json_reply(await in_thread(_read_canary, pool, services_of(request).blocking_redis))


async def promote_canary(request: HttpRequest, pool: str, body: CanaryEnd) -> HttpResponse:
    """Put the version that is tried in force on every engine; a guardrail of it then watches the pool, anew."""
    return await _end(request, pool, body, canaries.take_to_all)


async def withdraw_canary(request: HttpRequest, pool: str, body: CanaryEnd) -> HttpResponse:
    """Store a new version with the values in force, so that the engine that tried the other runs them again."""
    return await _end(request, pool, body, canaries.take_back)


async def _end(request: HttpRequest, pool: str, body: CanaryEnd, end: Any) -> HttpResponse:
    version: TunablesVersion = await in_thread(
        end,
        pool,
        body.version,
        reason=body.reason or "",
        author=author_of(request),
        redis=services_of(request).blocking_redis,
    )
    await services_of(request).gateway.refresh_pools()
    return json_reply(describe_version(version))


def _newest_watched(pool: str) -> int:
    guardrail = selectors.newest_guardrail(selectors.find_pool(pool))
    return selectors.current_version(pool).number if guardrail is None else guardrail.version.number


def _read_guardrail(name: str) -> dict[str, Any]:
    pool = selectors.find_pool(name)
    guardrail = selectors.newest_guardrail(pool)
    return {"pool": name, "guardrail": None if guardrail is None else _describe_guardrail(guardrail)}


def _describe_guardrail(guardrail: Guardrail) -> dict[str, Any]:
    canary = getattr(guardrail.version, "canary", None)
    watches = "pool" if canary is None or canary.state != CanaryState.RUNNING else f"engine {canary.engine_id}"
    return {
        "version": guardrail.version.number,
        "metric": guardrail.metric,
        "bound": guardrail.bound,
        "window_seconds": guardrail.window_seconds,
        "watch_seconds": guardrail.watch_seconds,
        "state": guardrail.state,
        "watches": watches,
        "starts_at": guardrail.starts_at,
        "ends_at": guardrail.starts_at + datetime.timedelta(seconds=guardrail.watch_seconds),
        "missed_since": guardrail.missed_since,
        "ended_at": guardrail.ended_at,
        "value": guardrail.value,
        "note": guardrail.note,
    }


def _read_canary(name: str, redis: Redis) -> dict[str, Any]:
    pool = selectors.find_pool(name)
    reading = read_canary(pool, living_engines(redis, PoolName(name)), redis)
    if reading is None:
        return {"pool": name, "canary": None}
    engines = reading.engines
    return {
        "pool": name,
        "canary": {
            "version": reading.number,
            "in_force": selectors.newest_version_of(pool).number,
            "engine": reading.engine_id,
            "engine_lives": not reading.is_gone,
            "since": reading.started_at,
            "measured_seconds": reading.seconds,
            "least_requests": LEAST_REQUESTS,
            "least_requests_p99": LEAST_REQUESTS_P99,
            "tried": _describe_side(reading.tried, [engine.engine_id for engine in engines if engine.is_canary]),
            "others": _describe_side(reading.others, [engine.engine_id for engine in engines if not engine.is_canary]),
        },
    }


def _describe_side(side: CanarySide, engines: list[Any]) -> dict[str, Any]:
    return {
        "engines": engines,
        "intervals": msgspec.to_builtins(side.share.intervals),
        "ended": outcomes_of(side.share.ended),
        "num_steps": side.work.num_steps,
        "step_ms": side.work.step_ms,
        "generated_tokens_per_second": side.work.generated_tokens_per_second,
        "num_preemptions": side.work.num_preemptions,
    }
