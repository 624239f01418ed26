"""A sweep in the foreground of a command: it plays here, and puts the pool back when it is interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from typing import Any, Final

import msgspec
from django.db import transaction
from django.utils import timezone
from redis import Redis

from serving.audit.services import record
from serving.contracts.actors import Author, name_of
from serving.contracts.errors import InvalidValue
from serving.contracts.ids import PoolName
from serving.lab.experiments.bench import BrokenOff, Stopped, Watch
from serving.lab.experiments.evidence import Evidence
from serving.lab.experiments.others import read_others
from serving.lab.experiments.sweep import play_sweep
from serving.lab.experiments.sweep_plan import SweepPlan
from serving.lab.experiments.sweep_results import SweepResult
from serving.lab.experiments.sweep_simulated import simulated_bench_of
from serving.lab.experiments.tuning import Retuning, restore
from serving.lab.models import Experiment, Run, State
from serving.lab.playing.player import Played, Player
from serving.lab.playing.target import Target
from serving.lab.recording import Recorder
from serving.lab.summaries import Outcome, RunSummary
from serving.lab.workloads.fitting_context import fitted_to
from serving.lab.workloads.workload import Workload
from serving.telemetry.conditions import Reading
from serving.tuning import selectors
from serving.tuning.living import living_engines

_LOOK_SECONDS: Final = 1.0


class ForegroundBench:
    """Owns the run that is played; on the command's thread, while the run has a thread with an event loop of its own.
    It gives a sign of life about every second, so that nobody takes the experiment for an orphan."""

    def __init__(
        self,
        experiment: Experiment,
        target: Target,
        *,
        redis: Redis,
        own_key_prefixes: Collection[str],
        say: Callable[[str], None],
    ) -> None:
        self.pool = experiment.pool
        self._experiment = experiment
        self._target = target
        self._redis = redis
        self._own_key_prefixes = own_key_prefixes
        self._say = say
        self._retuning = Retuning(experiment.pk, redis, pause=self.pause)
        self._outcomes: tuple[Outcome, ...] = ()

    def play(
        self, workload: Workload, *, title: str, point: Mapping[str, Any], watch: Watch | None = None
    ) -> RunSummary:
        """Play the workload over HTTP, as any client would; requests longer than the engines' context are cut to it."""
        self._say(title)
        fitted = fitted_to(workload, max_context_tokens=self._max_context_tokens())
        recorder = Recorder(fitted, is_simulated=False)
        player = Player(fitted, self._target, recorder=recorder)
        played = self._play_watched(player, watch)
        self._outcomes = tuple(recorder.outcomes)
        return recorder.summary(wall_seconds=played.wall_seconds, notes=played.notes)

    def evidence(self) -> Evidence:
        """The requests that were played last, as their client saw them."""
        return Evidence(outcomes=self._outcomes)

    def tunables(self) -> dict[str, Any]:
        """The pool's values in force."""
        return selectors.current_tunables(self.pool).tunables.as_dict()

    def retune(self, changes: Mapping[str, Any], *, reason: str) -> int:
        """As `Retuning.retune`."""
        return self._retuning.retune(changes, reason=reason)

    def overtaken(self) -> str | None:
        """As `Retuning.overtaken`."""
        return self._retuning.overtaken()

    def others(self) -> Mapping[str, Reading]:
        """The requests of the last minute that were asked with another key than the sweep's."""
        return read_others(self.pool, own_key_prefixes=self._own_key_prefixes, now=timezone.now())

    def pause(self, seconds: float) -> None:
        """Wait. Raises `Stopped`, as does all that takes long, once somebody asks for that in the console."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _LOOK_SECONDS))
            self._beat()

    def tell(self, progress: Mapping[str, Any]) -> None:
        """Keep the progress with the experiment."""
        Experiment.objects.filter(pk=self._experiment.pk).update(progress=progress, beaten_at=timezone.now())

    def _play_watched(self, player: Player, watch: Watch | None) -> Played:
        loop = asyncio.new_event_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="sweep") as thread, contextlib.closing(loop):
            playing = thread.submit(loop.run_until_complete, player.play())
            try:
                return self._wait(playing, watch)
            finally:
                # Whether it is interrupted, broken off or done: nothing goes on behind.
                if not playing.done():
                    loop.call_soon_threadsafe(player.stop)
                playing.exception()

    def _wait(self, playing: Future[Played], watch: Watch | None) -> Played:
        while True:
            with contextlib.suppress(NotYet):
                return playing.result(timeout=_LOOK_SECONDS)
            self._beat()
            if watch is not None and (reason := watch()) is not None:
                raise BrokenOff(reason)

    def _beat(self) -> None:
        own = Experiment.objects.filter(pk=self._experiment.pk)
        own.update(beaten_at=timezone.now())
        if own.filter(stop_asked=True).exists():
            raise Stopped

    def _max_context_tokens(self) -> int:
        engines = living_engines(self._redis, PoolName(self.pool))
        if not engines:
            raise InvalidValue("pool", self.pool, "a pool of which an engine lives")
        return min(engine.max_model_len for engine in engines)


def sweep_in_foreground(
    plan: SweepPlan,
    pool: str,
    target: Target,
    *,
    own_key_prefixes: Collection[str],
    author: Author,
    redis: Redis,
    say: Callable[[str], None],
) -> SweepResult:
    """Play the sweep here and keep it as an experiment. However it ends, the pool's tunables go back, unless somebody
    else changed them.

    Raises `InvalidValue` for a plan that cannot be swept and while another experiment works on the pool, and what
    `play_sweep` does.
    """
    plan.check()
    experiment = _begin(plan, pool, author)
    with _ending(experiment, redis, say):
        bench = ForegroundBench(experiment, target, redis=redis, own_key_prefixes=own_key_prefixes, say=say)
        result = play_sweep(plan, bench, simulated=lambda: simulated_bench_of(bench))
        Experiment.objects.filter(pk=experiment.pk).update(result=msgspec.to_builtins(result))
    return result


def _begin(plan: SweepPlan, pool: str, author: Author) -> Experiment:
    found = selectors.find_configured_pool(pool)
    now = timezone.now()
    with transaction.atomic():
        for model in (Experiment, Run):
            other = model.objects.select_for_update().filter(pool=found.name, state=State.RUNNING).first()
            if other is not None:
                raise InvalidValue("pool", pool, f"one on which nothing else of the Lab works, and {other} does")
        experiment = Experiment.objects.create(
            kind="sweep",
            pool=found.name,
            title=f"{' and '.join(each.name for each in plan.dimensions)} with {plan.workload.name}"[:200],
            plan=msgspec.to_builtins(plan),
            state=State.RUNNING,
            author=name_of(author),
            started_at=now,
            beaten_at=now,
        )
        record(
            "experiment ordered",
            actor=author,
            subject_kind="experiment",
            subject=str(experiment),
            pool=found.name,
            reason=experiment.title,
        )
    return experiment


@contextlib.contextmanager
def _ending(experiment: Experiment, redis: Redis, say: Callable[[str], None]) -> Iterator[None]:
    state, error = State.FAILED, ""
    try:
        yield
        state = State.FINISHED
    except KeyboardInterrupt:
        state, error = State.STOPPED, "interrupted"
        raise
    except Stopped:
        state = State.STOPPED
        raise
    except Exception as problem:
        error = str(problem)
        raise
    finally:
        if said := restore(experiment, redis=redis):
            say(said)
        Experiment.objects.filter(pk=experiment.pk).update(state=state, error=error[:500], ended_at=timezone.now())
