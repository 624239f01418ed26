"""An autopilot over a real database and a real Valkey: versions, the audit, and people who are never fought."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from django.utils import timezone
from redis import Redis

from serving.audit.models import AuditEvent
from serving.contracts import keys
from serving.contracts.errors import InvalidValue, PoolNotFound
from serving.contracts.guardrails import GuardrailTerms
from serving.contracts.ids import PoolName
from serving.lab.autopilot import services as autopilot
from serving.lab.autopilot.terms import Lever, Objective, Terms
from serving.lab.experiments.tuning import Retuning, restore
from serving.lab.models import Autopilot, AutopilotMove, Experiment, Run, State
from serving.telemetry.books import Books
from serving.telemetry.frames import WINDOWS_SECONDS, Frame, IntervalSummaries, encode_frame
from serving.telemetry.sketches import IntervalSummary
from serving.tuning import selectors, services
from serving.tuning.services import ensure_pool
from tests.telemetry.conftest import snapshot
from tests.tuning.engines import beat

POOL = PoolName("default")
TERMS = Terms(objectives=(Objective("ttft_p95", 1000),), levers=(Lever("max_running", 4, 64),), missed_seconds=60)


@pytest.fixture
def redis(valkey: str) -> Iterator[Redis]:
    with Redis.from_url(valkey) as client:
        yield client


@pytest.fixture
def pool(transactional_db: None) -> str:
    return ensure_pool(POOL, "a-model").name


class Clock:
    """The pool's time, and its frames."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.now = time.time()

    def tell(self, ttft_seconds: float, *, samples: int = 50, num_waiting: int = 5) -> None:
        summary = IntervalSummary(count=samples, mean=ttft_seconds, p50=ttft_seconds, p95=ttft_seconds)
        window = IntervalSummaries(ttft_seconds=summary)
        frame = Frame(
            sequence=1,
            unix_seconds=self.now,
            pool=POOL,
            windows=[window] * len(WINDOWS_SECONDS),
            prompt_tokens_per_second=0,
            generated_tokens_per_second=0,
            num_unread=0,
            num_unread_tokens=0,
            announced_version=1,
            engines=[snapshot("one", num_running=32, num_waiting=num_waiting)],
            books=Books(counts={}, num_waiting=0, num_running=0),
        )
        self.redis.set(keys.frame(POOL), encode_frame(frame))

    def go(self, seconds: float, ttft_seconds: float, **figures: Any) -> None:
        for _ in range(int(seconds / 10)):
            self.now += 10
            self.tell(ttft_seconds, **figures)
            autopilot.advance(POOL, redis=self.redis, now=self.now)


@pytest.fixture
def clock(redis: Redis, pool: str) -> Clock:
    autopilot.switch_on(pool, TERMS, reason="hold it", author="ann")
    return Clock(redis)


def row() -> Autopilot:
    return Autopilot.objects.get(pool=POOL)


def test_it_is_off_until_somebody_switches_it_on(pool: str, redis: Redis) -> None:
    Autopilot.objects.create(pool=pool)
    clock = Clock(redis)
    clock.go(600, 9.0)
    autopilot.advance_all(redis)
    assert selectors.current_version(pool).number == 1


def test_it_moves_one_step_explains_it_and_keeps_what_helps(clock: Clock) -> None:
    clock.go(80, 3.0)
    version = selectors.current_version(POOL)
    assert (version.number, version.author, version.changes) == (2, "autopilot", {"max_running": [32, 40]})
    assert "TTFT p95 of the last minute is 3000 ms, above 1000 ms" in version.reason
    event = AuditEvent.objects.get(action="tunables changed")
    assert (event.actor, event.actor_kind) == ("autopilot", "system")
    assert event.reason == version.reason
    clock.go(130, 0.8)
    (move,) = AutopilotMove.objects.all()
    assert (move.state, move.version, move.before, move.after) == ("kept", 2, 32, 40)
    assert move.figures_before["ttft_p95"] == 3000
    assert move.figures_after["ttft_p95"] == 800
    assert "fell from 3000 to 800 ms" in move.verdict


def test_what_does_not_help_is_undone_by_a_version_of_its_own(clock: Clock) -> None:
    clock.go(80, 3.0)
    clock.go(130, 3.0)
    version = selectors.current_version(POOL)
    assert (version.number, version.changes) == (3, {"max_running": [40, 32]})
    assert version.reason.startswith("undone: TTFT p95 was 3000 ms before and 3000 ms after: no help")
    assert AutopilotMove.objects.get().state == "undone"


def test_a_change_by_hand_pauses_it_and_stays(clock: Clock) -> None:
    clock.go(80, 3.0)
    services.change(POOL, {"max_running": 12}, reason="mine", author="ann", redis=clock.redis)
    clock.go(400, 9.0)
    version = selectors.current_version(POOL)
    assert (version.number, version.author) == (3, "ann")
    assert row().paused_because == "version 3 is of ann, who knows better"
    assert AutopilotMove.objects.get().state == "overtaken"
    assert AuditEvent.objects.filter(action="autopilot paused", actor="autopilot").count() == 1


def test_resumed_it_goes_on_from_what_was_set_by_hand(clock: Clock) -> None:
    clock.go(80, 3.0)
    services.change(POOL, {"max_running": 12}, reason="mine", author="ann", redis=clock.redis)
    clock.go(10, 9.0)
    autopilot.resume(POOL, reason="go on", author="ann")
    clock.go(80, 3.0)
    assert selectors.current_version(POOL).changes == {"max_running": [12, 15]}


@pytest.mark.parametrize("what", ["canary", "guardrail", "run"])
def test_it_waits_for_what_else_is_going_on(clock: Clock, what: str) -> None:
    if what == "run":
        Run.objects.create(title="a run", workload={}, target={}, pool=POOL, state=State.RUNNING, author="ann")
    else:
        terms: dict[str, Any] = {"guardrail": GuardrailTerms(metric="ttft_p95", bound=5000)}
        if what == "canary":
            beat(clock.redis, "one", "two")
            terms = {"canary": True}
        services.change(POOL, {"order": "fair"}, reason="", author="ann", redis=clock.redis, **terms)
        autopilot.switch_off(POOL, reason="", author="ann")
        autopilot.switch_on(POOL, TERMS, reason="", author="ann")
    before = selectors.current_version(POOL).number
    clock.go(300, 9.0)
    assert selectors.current_version(POOL).number == before
    assert msgspec.convert(row().memory, type=dict)["says"].startswith("waits while")


def an_experiment(clock: Clock) -> Experiment:
    """One that has begun, and whose first change is stored."""
    beat(clock.redis, "one", tunables_version=99)
    experiment: Experiment = Experiment.objects.create(
        kind="three_ways", title="", plan={}, pool=POOL, state=State.RUNNING, author="ann"
    )
    retune(experiment, clock, max_running=4)
    return experiment


def retune(experiment: Experiment, clock: Clock, **changes: Any) -> None:
    Retuning(experiment.pk, clock.redis).retune(changes, reason="to see")


def end(experiment: Experiment) -> None:
    Experiment.objects.filter(pk=experiment.pk).update(state=State.FINISHED, ended_at=timezone.now())


def test_an_experiments_changes_suspend_it_and_it_goes_on_when_they_are_taken_back(clock: Clock) -> None:
    clock.go(80, 3.0)
    assert selectors.current_version(POOL).values["max_running"] == 40
    experiment = an_experiment(clock)
    clock.go(30, 9.0)
    retune(experiment, clock, max_running=8)
    clock.go(300, 9.0)
    assert (row().paused_because, row().memory["says"]) == ("", "waits while the Lab plays an experiment on this pool")
    assert AutopilotMove.objects.get().state == "tried"
    end(experiment)
    clock.go(30, 9.0)
    assert row().memory["says"] == f"waits until the tunables are back that three_ways {experiment.pk} changed"
    restore(experiment, redis=clock.redis)
    assert selectors.current_version(POOL).number == 5
    clock.go(50, 9.0)
    assert row().memory["says"] == "waits until figures no longer tell of what the Lab played"
    clock.go(130, 0.8)
    (move,) = AutopilotMove.objects.all()
    assert (move.state, selectors.current_version(POOL).number) == ("kept", 5)
    assert row().memory["before_experiment"] is None


def test_who_changes_the_pool_during_an_experiment_pauses_it(clock: Clock) -> None:
    clock.go(30, 0.5)
    experiment = an_experiment(clock)
    services.change(POOL, {"max_running": 12}, reason="mine", author="bob", redis=clock.redis)
    clock.go(30, 0.5)
    assert row().paused_because == "version 3 is of bob, who knows better"
    end(experiment)


def test_whose_name_only_looks_like_an_experiments_pauses_it(clock: Clock) -> None:
    clock.go(30, 0.5)
    experiment = Experiment.objects.create(kind="sweep", title="", plan={}, pool="other", author="ann")
    author = f"ann, sweep {experiment.pk}"
    services.change(POOL, {"max_running": 12}, reason="mine", author=author, redis=clock.redis)
    clock.go(30, 0.5)
    assert row().paused_because.startswith(f"version 2 is of {author}")


def test_an_experiments_value_that_stays_pauses_it(clock: Clock) -> None:
    clock.go(30, 0.5)
    experiment = an_experiment(clock)
    Experiment.objects.filter(pk=experiment.pk).update(retuned=None)
    end(experiment)
    clock.go(30, 0.5)
    assert row().paused_because == f"version 2 of ann, three ways {experiment.pk} stayed when that was over"


def test_old_figures_and_none_move_nothing(clock: Clock) -> None:
    clock.now += 3600
    clock.tell(9.0)
    for seconds in range(20, 400, 10):
        autopilot.advance(POOL, redis=clock.redis, now=clock.now + seconds)
    assert selectors.current_version(POOL).number == 1
    assert row().memory["says"] == "no figures of the pool have come for some seconds"


def test_switching_is_audited_and_what_makes_no_sense_is_refused(pool: str, redis: Redis) -> None:
    with pytest.raises(PoolNotFound):
        autopilot.switch_on("no such pool", TERMS, reason="", author="ann")
    with pytest.raises(InvalidValue):
        autopilot.switch_off(pool, reason="", author="ann")
    with pytest.raises(InvalidValue):
        autopilot.resume(pool, reason="", author="ann")
    autopilot.switch_on(pool, TERMS, reason="hold", author="ann")
    autopilot.switch_off(pool, reason="enough", author="bob")
    actions = AuditEvent.objects.filter(subject=pool, action__startswith="autopilot").order_by("pk")
    assert [(event.action, event.actor, event.reason) for event in actions] == [
        ("autopilot switched on", "ann", "hold"),
        ("autopilot switched off", "bob", "enough"),
    ]
    assert not row().is_on


def test_a_pool_whose_terms_cannot_be_kept_any_more_holds_up_no_other(clock: Clock) -> None:
    ensure_pool("broken", "a-model")
    autopilot.switch_on("broken", TERMS, reason="", author="ann")
    Autopilot.objects.filter(pool="broken").update(terms={"objectives": "none"})
    clock.now = timezone.now().timestamp()
    clock.tell(3.0)
    autopilot.advance_all(clock.redis)
    assert row().memory["missed_since"] != {}
