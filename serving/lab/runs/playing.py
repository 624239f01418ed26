"""Plays one run, from its row to its row. Blocking: on the thread of the Lab's process that plays it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import close_old_connections
from django.db.models import QuerySet
from django.utils import timezone
from redis import Redis as BlockingRedis
from redis.asyncio import Redis

from serving.contracts.errors import DomainError
from serving.contracts.ids import PoolName
from serving.lab.experiments.bench import Watch
from serving.lab.fingerprints import read_fingerprint
from serving.lab.models import Run, State
from serving.lab.packing import pack_outcomes
from serving.lab.playing.player import Played, Player, Progress
from serving.lab.playing.target import Target
from serving.lab.recording import Recorder
from serving.lab.runs.gauges import PoolGauges
from serving.lab.runs.own_keys import end_keys, make_keys
from serving.lab.runs.services import LONGEST_RUN_SECONDS, take_key
from serving.lab.summaries import RunSummary
from serving.lab.workloads.codec import decode_workload, workload_to_dict
from serving.lab.workloads.fitting_context import clippings, fitted_to
from serving.lab.workloads.workload import Workload
from serving.tuning.living import living_engines
from serving.tuning.selectors import current_version

logger = logging.getLogger(__name__)

_TELL_SECONDS = 1.0
_SPARE_SECONDS = 600.0
"""How much longer than a run may take its keys are good: for the answers of its last requests."""
_MOST_MOMENTS = 60

WAS_STOPPED = "the Lab's process was stopped"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a run ended: its state then, and why, where not by itself. `summary` is None where nothing was measured."""

    state: str
    summary: RunSummary | None
    error: str = ""
    broken_off: str | None = None


class RunPlayer:
    """Owns one run while it plays. `ending` is set when the process is to end."""

    def __init__(self, run: Run, *, redis: BlockingRedis, ending: threading.Event, watch: Watch | None = None) -> None:
        self._run = run
        self._redis = redis
        self._ending = ending
        self._watch = watch
        self._progress: Progress | None = None
        self._why: tuple[str, str] | None = None
        self._broken_off: str | None = None

    def play(self) -> Ended:
        """Play the run, which was taken for playing, to its end, and keep what came of it. Never raises what a server
        or a workload does: that is how the run ends."""
        run = self._run
        try:
            ended = self._play()
        except DomainError as error:
            ended = Ended(state=State.FAILED, summary=None, error=error.message)
        except Exception as error:
            logger.exception("run %d failed", run.pk)
            ended = Ended(state=State.FAILED, summary=None, error=f"{type(error).__name__}: {error}"[:500])
        finally:
            if run.pool:
                end_keys(run.pk, redis=self._redis)
        kept = self._own_row().update(
            state=ended.state,
            summary=None if ended.summary is None else msgspec.to_builtins(ended.summary),
            error=ended.error[:500],
            ended_at=timezone.now(),
        )
        if not kept:
            logger.warning("run %d had been ended by others as it came to its end: %s", run.pk, ended.error)
        return ended

    def _own_row(self) -> QuerySet[Run]:
        """The run's row for as long as it plays: what others ended stays as they said."""
        return Run.objects.filter(pk=self._run.pk, state=State.RUNNING)

    def _play(self) -> Ended:
        run = self._run
        workload, cuts = self._prepare(decode_workload(run.workload))
        version = current_version(run.pool).number if run.pool else None
        recorder = Recorder(workload)
        target = self._target(workload)
        played = asyncio.run(self._play_on_loop(workload, target, recorder))
        notes = [*cuts, *played.notes]
        if run.pool and (now := current_version(run.pool).number) != version:
            notes.append(f"The tunables changed while it played: from version {version} to {now}.")
        summary = recorder.summary(wall_seconds=played.wall_seconds, notes=notes)
        self._own_row().update(outcomes=pack_outcomes(recorder.outcomes))
        state, error = self._why or (State.FINISHED, "")
        if state == State.FINISHED and summary.total.num_requests and not summary.total.num_finished:
            told = summary.first_failure or ", ".join(summary.refused_by_code) or "none came to its end"
            state, error = State.FAILED, f"no request finished: {told}"
        return Ended(state=state, summary=summary, error=error, broken_off=self._broken_off)

    def _prepare(self, workload: Workload) -> tuple[Workload, list[str]]:
        """The workload as this server can serve it, and what had to be cut; the row says what is played on what."""
        run = self._run
        if not run.pool:
            return workload, []
        engines = living_engines(self._redis, PoolName(run.pool))
        cuts: list[str] = []
        if engines:
            longest = min(engine.max_model_len for engine in engines)
            cuts = [f"{cut}." for cut in clippings(workload, max_context_tokens=longest)]
            workload = fitted_to(workload, max_context_tokens=longest)
        version = current_version(run.pool)
        self._own_row().update(
            workload=workload_to_dict(workload),
            tunables=version.values,
            tunables_version=version.number,
            fingerprint=msgspec.to_builtins(read_fingerprint(self._redis, run.pool)),
        )
        return workload, cuts

    def _target(self, workload: Workload) -> Target:
        run = self._run
        target = msgspec.convert(run.target, type=Target)
        if not run.pool:
            return msgspec.structs.replace(target, key=take_key(run.pk, redis=self._redis))
        seconds = (workload.duration_seconds or LONGEST_RUN_SECONDS) + target.timeout_seconds + _SPARE_SECONDS
        keys = make_keys(run.pk, {each.tenant for each in workload.classes if each.tenant}, seconds=seconds)
        return msgspec.structs.replace(target, key=keys.pop(""), keys=keys)

    async def _play_on_loop(self, workload: Workload, target: Target, recorder: Recorder) -> Played:
        redis = Redis.from_url(settings.REDIS_URL, socket_timeout=5, socket_connect_timeout=5)
        gauges = PoolGauges(redis, PoolName(self._run.pool)) if self._run.pool else None
        player = Player(workload, target, recorder=recorder, gauges=gauges, tell=self._note)
        steering = asyncio.create_task(self._steer(player, workload, recorder))
        try:
            return await player.play()
        finally:
            steering.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await steering
            await redis.aclose()

    def _note(self, progress: Progress) -> None:
        self._progress = progress

    async def _steer(self, player: Player, workload: Workload, recorder: Recorder) -> None:
        """Once a second: tell how far it is, and stop where somebody asks for it or the time is over."""
        while True:
            await asyncio.sleep(_TELL_SECONDS)
            told = self._told(workload, recorder)
            asked = await _on_thread(self._tell, told)
            if asked:
                self._why = (State.STOPPED, "")
            elif self._ending.is_set():
                self._why = (State.FAILED, WAS_STOPPED)
            elif self._progress is not None and self._progress.seconds > LONGEST_RUN_SECONDS:
                self._why = (State.STOPPED, f"it took longer than {LONGEST_RUN_SECONDS:g} s")
            elif self._watch is not None and (reason := await _on_thread(self._watch)) is not None:
                self._why, self._broken_off = (State.STOPPED, reason), reason
            if self._why is not None:
                player.stop()
                return

    def _tell(self, told: Mapping[str, Any]) -> bool:
        """Keep the progress, and give a sign of life; whether the run was asked to stop, or was ended by others."""
        if not self._own_row().update(progress=dict(told), beaten_at=timezone.now()):
            return True
        return bool(Run.objects.filter(pk=self._run.pk, stop_asked=True).exists())

    def _told(self, workload: Workload, recorder: Recorder) -> dict[str, Any]:
        progress = self._progress
        if progress is None:
            return {}
        summary = recorder.summary(wall_seconds=max(progress.seconds, workload.warm_up_seconds + 1e-3))
        return {
            **dataclasses.asdict(progress),
            "share": _share_done(workload, progress),
            "total": msgspec.to_builtins(summary.total),
            "num_warm_up_requests": summary.num_warm_up_requests,
            "moments": msgspec.to_builtins(summary.moments[-_MOST_MOMENTS:]),
        }


def _share_done(workload: Workload, progress: Progress) -> float | None:
    shares = []
    if workload.duration_seconds:
        shares.append(progress.seconds / workload.duration_seconds)
    if workload.num_requests:
        shares.append(progress.num_ended / workload.num_requests)
    return min(1.0, max(shares)) if shares else None


async def _on_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """A call of the database, on a thread whose connection is looked after."""

    def call() -> Any:
        close_old_connections()
        try:
            return function(*arguments)
        finally:
            close_old_connections()

    return await sync_to_async(call, thread_sensitive=False)()
