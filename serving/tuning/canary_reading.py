"""How a version does that one engine tries: that engine against the others, from its engines' counters and from the
requests that the monitor measured. Blocking."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from typing import cast

from django.utils import timezone
from redis import Redis
from redis.exceptions import RedisError

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import EngineSnapshot
from serving.telemetry.frames import Share, TrialFigures, decode_frame
from serving.tuning.canary_figures import EngineFigures, Work, figures_since, work_of
from serving.tuning.models import Pool
from serving.tuning.selectors import running_canary

LEAST_REQUESTS = 20
"""Of fewer requests on either side, nothing is judged by their median or p95."""
LEAST_REQUESTS_P99 = 100
_STALE_SECONDS = 10.0
"""A frame that is older tells of a monitor that is away."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CanarySide:
    """The engine that tries the version, or all others: what they did since the canary began, and what was measured of
    their requests in the last `CanaryReading.seconds`."""

    work: Work
    share: Share


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CanaryReading:
    """A version that is tried on one engine. `engines` are those that live, the canary's first; `seconds` is how far
    back the requests were measured, None where no monitor tells of them."""

    number: int
    engine_id: EngineId
    started_at: datetime.datetime
    engines: tuple[EngineFigures, ...]
    seconds: int | None
    tried: CanarySide
    others: CanarySide

    @property
    def is_gone(self) -> bool:
        """Whether its engine does not live."""
        return not any(engine.is_canary for engine in self.engines)


def read_canary(pool: Pool, engines: Sequence[EngineSnapshot], redis: Redis) -> CanaryReading | None:
    """What is tried in the pool, of whose engines `engines` live; None where nothing is."""
    canary = running_canary(pool)
    if canary is None:
        return None
    engine_id = EngineId(canary.engine_id)
    lasted = (timezone.now() - canary.started_at).total_seconds()
    figures = figures_since(canary.baseline, engines, canary=engine_id, seconds=lasted)
    trial = _read_trial(redis, PoolName(pool.name), version=canary.version.number, engine_id=engine_id)
    return CanaryReading(
        number=canary.version.number,
        engine_id=engine_id,
        started_at=canary.started_at,
        engines=tuple(figures),
        seconds=None if trial is None else trial.seconds,
        tried=CanarySide(
            work=work_of(engine for engine in figures if engine.is_canary),
            share=Share() if trial is None else trial.tried.whole,
        ),
        others=CanarySide(
            work=work_of(engine for engine in figures if not engine.is_canary),
            share=Share() if trial is None else trial.others.whole,
        ),
    )


def _read_trial(redis: Redis, pool: PoolName, *, version: int, engine_id: EngineId) -> TrialFigures | None:
    """What the monitor's last frame tells of this trial; None where there is none that is new enough."""
    try:
        frame = decode_or_none(decode_frame, cast("bytes | None", redis.get(keys.frame(pool))))
        seconds, _ = redis.time()
    except (RedisError, OSError):
        return None
    if frame is None or frame.trial is None or seconds - frame.unix_seconds > _STALE_SECONDS:
        return None
    is_this = (frame.trial.version, frame.trial.engine_id) == (version, engine_id)
    return frame.trial if is_this else None
