"""The monitor's watch: scripted frames, a clock that is theirs, and what the database is asked to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pytest

from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import AnnouncedTunables, EngineSnapshot
from serving.contracts.tunables import Tunables
from serving.telemetry.books import Books
from serving.telemetry.conditions import Condition
from serving.telemetry.frames import WINDOWS_SECONDS, Frame, IntervalSummaries, Share, Side, TrialFigures
from serving.telemetry.reconciler import Trial
from serving.telemetry.sketches import IntervalSummary
from serving.tuning.guardrails import Watched
from serving.tuning.watching import Standing, Watcher
from tests.telemetry.conftest import snapshot
from tests.tuning.conftest import POOL

START = 5000.0
GUARDRAIL = Watched(
    id=1,
    pool=POOL,
    version=2,
    condition=Condition(metric="ttft_p95", bound=500.0, for_seconds=30.0),
    starts_at=START,
    watch_seconds=600.0,
    missed_since=None,
)


class FakeBook:
    """Notes what it is asked to do; may be out of reach."""

    def __init__(self, *watched: Watched, trials: dict[PoolName, Trial] | None = None) -> None:
        self.standing = Standing(watched, trials or {})
        self.acts: list[tuple[Any, ...]] = []
        self.works = True

    async def read(self) -> Standing:
        self._check()
        return self.standing

    async def note_missed_since(self, watched: Watched, since: float | None) -> None:
        self._note("missed since", watched.id, since)

    async def let_pass(self, watched: Watched) -> bool:
        return self._end("passed", watched.id)

    async def take_back(self, watched: Watched, value: float) -> object:
        return self._end("taken back", watched.id, value)

    async def move(self, pool: PoolName, old: EngineId, new: EngineId, *, engines: Sequence[EngineSnapshot]) -> bool:
        self._note("moved", pool, old, new, [engine.engine_id for engine in engines])
        trial = msgspec.structs.replace(self.standing.trials[pool], engine_id=new)
        self.standing = msgspec.structs.replace(self.standing, trials={pool: trial})
        return True

    def _end(self, what: str, guardrail_id: int, *more: Any) -> bool:
        self._note(what, guardrail_id, *more)
        left = tuple(watched for watched in self.standing.watched if watched.id != guardrail_id)
        self.standing = msgspec.structs.replace(self.standing, watched=left)
        return True

    def _note(self, *act: Any) -> None:
        self._check()
        self.acts.append(act)

    def _check(self) -> None:
        if not self.works:
            raise RuntimeError("the disk is gone")


def frame(
    at: float, *, ttft_ms: float | None = None, count: int = 100, engines: Iterable[EngineSnapshot] = ()
) -> Frame:
    ttft = IntervalSummary() if ttft_ms is None else IntervalSummary(count=count, p95=ttft_ms / 1000)
    return Frame(
        sequence=1,
        unix_seconds=at,
        pool=POOL,
        windows=[IntervalSummaries(ttft_seconds=ttft)] * len(WINDOWS_SECONDS),
        prompt_tokens_per_second=0.0,
        generated_tokens_per_second=0.0,
        num_unread=0,
        num_unread_tokens=0,
        announced_version=2,
        engines=list(engines),
        books=Books(counts={}, num_waiting=0, num_running=0),
    )


async def show(watcher: Watcher, start: float, end: float, **content: Any) -> None:
    """Frames from `start` to before `end`, one a second."""
    at = start
    while at < end:
        await watcher(frame(at, **content))
        await watcher.settled()
        at += 1.0


async def test_bound_missed_for_its_time_is_taken_back_once(caplog: pytest.LogCaptureFixture) -> None:
    book = FakeBook(GUARDRAIL)
    watcher = Watcher(book)
    await show(watcher, START, START + 10, ttft_ms=100)
    await show(watcher, START + 10, START + 40, ttft_ms=800)
    assert book.acts == [("missed since", 1, START + 10)]
    await show(watcher, START + 40, START + 60, ttft_ms=812)
    assert book.acts[1:] == [("taken back", 1, 812.0)]
    assert caplog.records == []


async def test_a_moment_within_the_bound_begins_the_time_anew() -> None:
    book = FakeBook(GUARDRAIL)
    watcher = Watcher(book)
    await show(watcher, START, START + 5, ttft_ms=100)
    await show(watcher, START + 5, START + 30, ttft_ms=800)
    await show(watcher, START + 30, START + 31, ttft_ms=500)
    await show(watcher, START + 31, START + 60, ttft_ms=800)
    assert book.acts == [("missed since", 1, START + at) if at else ("missed since", 1, None) for at in (5, 0, 31)]


@pytest.mark.parametrize("content", [{"ttft_ms": 800, "count": 4}, {"ttft_ms": None}])
async def test_too_few_samples_judge_nobody(content: dict[str, Any]) -> None:
    book = FakeBook(GUARDRAIL)
    watcher = Watcher(book)
    await show(watcher, START, START + 300, **content)
    assert book.acts == []


async def test_what_was_missed_before_the_change_counts_after_a_minute_only() -> None:
    book = FakeBook(GUARDRAIL)
    watcher = Watcher(book)
    await show(watcher, START, START + 60, ttft_ms=800)
    assert book.acts == []
    await show(watcher, START + 60, START + 92, ttft_ms=800)
    assert book.acts == [("missed since", 1, START + 60), ("taken back", 1, 800.0)]


async def test_kept_to_its_end_it_passes_and_a_miss_that_had_begun_is_seen_out() -> None:
    book = FakeBook(GUARDRAIL)
    watcher = Watcher(book)
    await show(watcher, START + 590, START + 595, ttft_ms=100)
    await show(watcher, START + 595, START + 610, ttft_ms=800)
    assert ("passed", 1) not in book.acts
    await show(watcher, START + 610, START + 612, ttft_ms=100)
    assert book.acts[-1] == ("passed", 1)


async def test_monitor_that_takes_over_goes_on_from_what_is_stored() -> None:
    book = FakeBook(dataclasses.replace(GUARDRAIL, missed_since=START + 70))
    watcher = Watcher(book)
    await show(watcher, START + 90, START + 100, ttft_ms=800)
    assert book.acts == []
    await show(watcher, START + 100, START + 102, ttft_ms=800)
    assert book.acts == [("taken back", 1, 800.0)]


async def test_monitor_that_takes_over_within_the_first_minute_goes_on_too() -> None:
    book = FakeBook(dataclasses.replace(GUARDRAIL, missed_since=START + 10))
    watcher = Watcher(book)
    await show(watcher, START + 20, START + 45, ttft_ms=800)
    assert book.acts == [("taken back", 1, 800.0)]


async def test_monitor_that_takes_over_waits_for_enough_requests_to_tell_a_share_of() -> None:
    condition = Condition(metric="error_ratio", bound=0.1, for_seconds=30.0)
    book = FakeBook(dataclasses.replace(GUARDRAIL, condition=condition, missed_since=START + 70))
    watcher = Watcher(book)
    for second in range(80, 103):
        counts = {"finished:stop": second, "failed:internal_error": second // 2}
        await watcher(
            msgspec.structs.replace(frame(START + second), books=Books(counts=counts, num_waiting=0, num_running=0))
        )
        await watcher.settled()
    assert [act[0] for act in book.acts] == ["taken back"]


async def test_monitor_that_works_again_forgets_what_it_saw_before_another_did() -> None:
    book = FakeBook(GUARDRAIL)
    watcher = Watcher(book)
    await show(watcher, START, START + 5, ttft_ms=100)
    await show(watcher, START + 5, START + 10, ttft_ms=800)
    # Another one, meanwhile, saw the bound kept, and missed again a moment ago.
    book.standing = Standing((dataclasses.replace(GUARDRAIL, missed_since=START + 190),), {})
    await show(watcher, START + 200, START + 220, ttft_ms=800)
    assert [act[0] for act in book.acts] == ["missed since"]
    await show(watcher, START + 220, START + 222, ttft_ms=800)
    assert book.acts[-1] == ("taken back", 1, 800.0)


async def test_database_that_was_away_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    book = FakeBook(GUARDRAIL)
    watcher = Watcher(book)
    await show(watcher, START, START + 10, ttft_ms=100)
    book.works = False
    await show(watcher, START + 10, START + 60, ttft_ms=800)
    assert book.acts == []
    book.works = True
    await show(watcher, START + 60, START + 64, ttft_ms=900)
    assert [act[0] for act in book.acts] == ["missed since", "taken back"]
    assert len(caplog.records) == 1


async def test_bound_that_was_missed_while_the_database_was_away_is_not_let_pass_at_the_end_of_the_watch() -> None:
    book = FakeBook(dataclasses.replace(GUARDRAIL, watch_seconds=60.0))
    watcher = Watcher(book)
    await show(watcher, START, START + 10, ttft_ms=100)
    book.works = False
    await show(watcher, START + 10, START + 45, ttft_ms=800)
    await show(watcher, START + 45, START + 70, ttft_ms=100)
    book.works = True
    await show(watcher, START + 70, START + 80, ttft_ms=100)
    assert [act[0] for act in book.acts if act[0] != "missed since"] == ["taken back"]


async def test_other_pools_frames_judge_nothing() -> None:
    book = FakeBook(dataclasses.replace(GUARDRAIL, pool=PoolName("other")))
    watcher = Watcher(book)
    await show(watcher, START, START + 200, ttft_ms=800)
    assert book.acts == []


async def test_canary_moves_to_the_engine_that_was_restarted_and_not_at_once() -> None:
    trial = Trial(EngineId("gone"), AnnouncedTunables(2, Tunables()), since=START)
    book = FakeBook(trials={POOL: trial})
    watcher = Watcher(book)
    old = snapshot("old", uptime_seconds=9000.0)
    new = snapshot("new", uptime_seconds=5.0)
    await show(watcher, START + 20, START + 30, engines=[old, snapshot("gone", uptime_seconds=100.0)])
    await show(watcher, START + 30, START + 39, engines=[old, new])
    assert book.acts == []
    await show(watcher, START + 39, START + 60, engines=[old, new])
    assert book.acts == [("moved", POOL, "gone", "new", ["old", "new"])]


TRIAL = Trial(EngineId("canary"), AnnouncedTunables(2, Tunables()), since=START)


def figures(*, ttft_ms: float, ended: dict[str, int] | None = None, version: int = 2) -> TrialFigures:
    """What the canary's engine alone did in the last minute."""
    intervals = IntervalSummaries(ttft_seconds=IntervalSummary(count=100, p95=ttft_ms / 1000))
    share = Share(intervals=intervals, ended=ended or {})
    return TrialFigures(
        version=version, engine_id=TRIAL.engine_id, since=START, seconds=60, tried=Side(minute=share, whole=share)
    )


async def show_trial(watcher: Watcher, start: float, end: float, *, pool_ms: float, trial: TrialFigures | None) -> None:
    at = start
    while at < end:
        await watcher(msgspec.structs.replace(frame(at, ttft_ms=pool_ms), trial=trial))
        await watcher.settled()
        at += 1.0


async def test_a_version_on_one_engine_is_judged_by_that_engine_and_not_by_the_pool() -> None:
    book = FakeBook(GUARDRAIL, trials={POOL: TRIAL})
    watcher = Watcher(book)
    await show_trial(watcher, START, START + 150, pool_ms=9000, trial=figures(ttft_ms=100))
    assert book.acts == []
    await show_trial(watcher, START + 150, START + 182, pool_ms=100, trial=figures(ttft_ms=812))
    assert book.acts == [("missed since", 1, START + 150), ("taken back", 1, 812.0)]


async def test_share_of_failed_requests_is_the_canary_engines_own() -> None:
    condition = Condition(metric="error_ratio", bound=0.1, for_seconds=30.0)
    book = FakeBook(dataclasses.replace(GUARDRAIL, condition=condition), trials={POOL: TRIAL})
    watcher = Watcher(book)
    bad = figures(ttft_ms=100, ended={"finished:stop": 30, "failed:internal_error": 10, "aborted": 50})
    await show_trial(watcher, START + 55, START + 92, pool_ms=100, trial=bad)
    assert book.acts == [("missed since", 1, START + 60), ("taken back", 1, 0.25)]


@pytest.mark.parametrize("trial", [None, figures(ttft_ms=9000, version=3)])
async def test_frames_that_do_not_tell_of_the_trial_judge_it_neither_way(trial: TrialFigures | None) -> None:
    book = FakeBook(dataclasses.replace(GUARDRAIL, missed_since=START + 60), trials={POOL: TRIAL})
    watcher = Watcher(book)
    await show_trial(watcher, START + 61, START + 80, pool_ms=9000, trial=trial)
    assert book.acts == []
    await show_trial(watcher, START + 80, START + 92, pool_ms=100, trial=figures(ttft_ms=800))
    assert book.acts == [("taken back", 1, 800.0)]
