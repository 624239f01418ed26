"""The bench at which experiments on a living pool work. Blocking: on the thread that plays the experiment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from django.utils import timezone
from redis import Redis

from serving.contracts.errors import Unavailable
from serving.lab.experiments.bench import BrokenOff, Stopped, Watch
from serving.lab.experiments.evidence import Evidence
from serving.lab.experiments.others import read_others
from serving.lab.experiments.tuning import Retuning
from serving.lab.fingerprints import read_fingerprint
from serving.lab.models import Experiment, Run, State
from serving.lab.runs.evidence import gather_evidence
from serving.lab.runs.own_keys import own_prefixes
from serving.lab.runs.playing import RunPlayer
from serving.lab.runs.services import own_url
from serving.lab.summaries import RunSummary
from serving.lab.workloads.codec import workload_to_dict
from serving.lab.workloads.workload import Workload
from serving.telemetry.conditions import Reading
from serving.tuning.selectors import current_tunables, find_configured_pool

_LOOK_SECONDS = 0.5


class RealBench:
    """Owns an experiment while it is played: which runs were its own, and the sign of life that it gives."""

    def __init__(
        self,
        experiment: Experiment,
        *,
        redis: Redis,
        ending: threading.Event,
        say: Callable[[str], None] = lambda _title: None,
    ) -> None:
        self._experiment = experiment
        self._redis = redis
        self._ending = ending
        self._say = say
        self._retuning = Retuning(experiment.pk, redis, pause=self.pause)
        self._own_prefixes: set[str] = set()
        self._last_run: Run | None = None
        fingerprint = msgspec.to_builtins(read_fingerprint(redis, experiment.pool))
        Experiment.objects.filter(pk=experiment.pk).update(fingerprint=fingerprint)

    @property
    def pool(self) -> str:
        """See `Bench.pool`."""
        return str(self._experiment.pool)

    def play(
        self, workload: Workload, *, title: str, point: Mapping[str, Any], watch: Watch | None = None
    ) -> RunSummary:
        """See `Bench.play`. Raises `Unavailable` where the run failed."""
        self._look()
        self._say(title)
        now = timezone.now()
        pool = find_configured_pool(self.pool)
        run = Run.objects.create(
            title=title[:200],
            workload=workload_to_dict(workload),
            target={"url": own_url(), "model": pool.model, "pool": pool.name},
            pool=pool.name,
            experiment=self._experiment,
            point=dict(point),
            state=State.RUNNING,
            author=self._experiment.author,
            started_at=now,
            beaten_at=now,
        )

        def look() -> str | None:
            self._own_prefixes |= own_prefixes(run.pk)
            self._beat()
            if self._is_stop_asked():
                Run.objects.filter(pk=run.pk).update(stop_asked=True)
            return None if watch is None else watch()

        self._last_run = run
        ended = RunPlayer(run, redis=self._redis, ending=self._ending, watch=look).play()
        self._look()
        if ended.broken_off is not None:
            raise BrokenOff(ended.broken_off)
        if ended.summary is None or ended.state == State.FAILED:
            raise Unavailable(f"run {run.pk} failed: {ended.error}")
        if ended.state == State.STOPPED:
            raise Stopped
        return ended.summary

    def evidence(self) -> Evidence:
        """See `Bench.evidence`."""
        assert self._last_run is not None, "evidence is of a run that was played"
        return gather_evidence(self._last_run, redis=self._redis, pause=self.pause)

    def tunables(self) -> dict[str, Any]:
        """See `Bench.tunables`."""
        return current_tunables(self.pool).tunables.as_dict()

    def retune(self, changes: Mapping[str, Any], *, reason: str) -> int:
        """See `Bench.retune`."""
        self._look()
        return self._retuning.retune(changes, reason=reason)

    def overtaken(self) -> str | None:
        """See `Bench.overtaken`."""
        return self._retuning.overtaken()

    def others(self) -> Mapping[str, Reading]:
        """See `Bench.others`."""
        return read_others(self.pool, own_key_prefixes=self._own_prefixes, now=timezone.now())

    def pause(self, seconds: float) -> None:
        """See `Bench.pause`."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._look()
            time.sleep(min(_LOOK_SECONDS, left))

    def tell(self, progress: Mapping[str, Any]) -> None:
        """See `Bench.tell`."""
        Experiment.objects.filter(pk=self._experiment.pk).update(progress=dict(progress), beaten_at=timezone.now())

    def _beat(self) -> None:
        Experiment.objects.filter(pk=self._experiment.pk).update(beaten_at=timezone.now())

    def _look(self) -> None:
        self._beat()
        if self._ending.is_set() or self._is_stop_asked():
            raise Stopped

    def _is_stop_asked(self) -> bool:
        """One that others have ended, because it gave no sign of life, may not go on either."""
        return not Experiment.objects.filter(pk=self._experiment.pk, state=State.RUNNING, stop_asked=False).exists()
