"""The seven steps, judged from what is known of a pool: pure."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
import pytest

from serving.lab.fingerprints import Fingerprint
from serving.lab.steps.evidence import (
    Finding,
    Kind,
    Measurement,
    PoolEvidence,
    Ref,
    Result,
    Targets,
    Traffic,
    Try,
)
from serving.lab.steps.judging import MIXED_WORKLOAD, Step, judge_steps
from serving.lab.workloads.ready import READY

AT = datetime.datetime(2026, 3, 31, 12, tzinfo=datetime.UTC)
NOW = Fingerprint(model="m", device="cpu", dtype="bf16", max_model_len=8192, kv_blocks=9, num_engines=1)
TARGETS = Targets(ttft_ms=10_000, itl_ms=200, first_ttft_ms=10_000, first_itl_ms=200, version=1)
MEASURED = Measurement(name="ours", tenant="", until=AT, num_requests=1200, num_classes=1, fingerprint=NOW)


def result(kind: Kind, number: int = 1, **changes: Any) -> Result:
    facts = {"title": "t", "ended_at": AT, "fingerprint": NOW, "says": f"{kind} says"}
    return Result(ref=Ref(kind, number), **{**facts, **changes})


def nothing(**changes: Any) -> PoolEvidence:
    none = {name: Finding() for name in ("sweep", "run", "mixture", "overload", "three_ways")}
    facts = {"pool": "default", "now": NOW, "has_requests": True, "measured": None, "traffic": None}
    return PoolEvidence(**{**facts, "targets": TARGETS, **none, **changes})


def everything(**changes: Any) -> PoolEvidence:
    found = {name: Finding(result=result(name)) for name in ("sweep", "overload", "three_ways")}
    runs = {"run": Finding(result=result("run", 1)), "mixture": Finding(result=result("run", 2))}
    targets = msgspec.structs.replace(TARGETS, ttft_ms=800.0, version=4)
    return nothing(**{**found, **runs, "measured": MEASURED, "targets": targets, **changes})


def step(number: int, known: PoolEvidence) -> Step:
    return judge_steps(known)[number - 1]


def test_there_are_seven_in_their_order() -> None:
    assert [each.number for each in judge_steps(nothing())] == [1, 2, 3, 4, 5, 6, 7]
    assert [each.number for each in judge_steps(everything())] == [1, 2, 3, 4, 5, 6, 7]


def test_without_anything_every_step_is_missing_and_says_what_to_do() -> None:
    steps = judge_steps(nothing())
    assert {each.state for each in steps} == {"missing"}
    assert [each.act.does for each in steps] == ["measure", "set_targets", "sweep", "run", "run", "overload", "sweep"]
    assert all(each.says and not each.warnings and not each.differs for each in steps)


def test_with_everything_every_step_is_done_and_shows_its_evidence() -> None:
    steps = judge_steps(everything())
    assert {each.state for each in steps} == {"done"}
    assert [each.act.does for each in steps] == ["show", "set_targets", "show", "show", "show", "show", "again"]
    assert steps[2].says == ("sweep says",)
    assert steps[3].act.refs == (Ref("run", 1),)
    assert steps[4].act.refs == (Ref("run", 2),)
    assert steps[6].says == ("All 5 results were measured on this.",)


def test_without_any_request_a_ready_workload_is_proposed() -> None:
    first = step(1, nothing(has_requests=False))
    assert (first.state, first.act.does) == ("missing", "choose_workload")


def test_a_measurement_says_when_it_was_made_and_from_how_many_requests() -> None:
    (says,) = step(1, everything()).says
    assert says == "ours, from 1,200 requests until 2026-03-31 12:00 UTC"
    of_one = msgspec.structs.replace(MEASURED, tenant="acme", num_requests=1)
    (says,) = step(1, everything(measured=of_one)).says
    assert says == "ours, from 1 request of tenant acme until 2026-03-31 12:00 UTC"


@pytest.mark.parametrize(
    ("prompts", "answers", "said"),
    [(0.31, None, "prompts by 31%"), (0.05, 0.2, "answers by 20%"), (0.3, 0.2, "prompts by 30% and answers by 20%")],
)
def test_traffic_that_moved_is_told_and_measured_again(prompts: float, answers: float | None, said: str) -> None:
    first = step(1, everything(traffic=Traffic(num_requests=500, prompts=prompts, answers=answers, bound=0.1)))
    assert (first.state, first.act.does) == ("done", "measure")
    assert said in first.warnings[0]
    assert "500 requests after it" in first.warnings[0]


@pytest.mark.parametrize(("prompts", "answers"), [(0.1, 0.1), (None, None), (0.0, None)])
def test_traffic_within_the_bound_is_no_warning(prompts: float | None, answers: float | None) -> None:
    traffic = Traffic(num_requests=500, prompts=prompts, answers=answers, bound=0.1)
    assert step(1, everything(traffic=traffic)).warnings == ()


def test_lengths_are_stale_for_another_model_and_not_for_other_memory() -> None:
    other = msgspec.structs.replace(NOW, model="n", kv_blocks=1)
    first = step(1, everything(now=other))
    assert (first.state, first.differs, first.act.does) == ("stale", ("model: m → n",), "measure")
    assert step(1, everything(now=msgspec.structs.replace(NOW, kv_blocks=1))).state == "done"


def test_targets_are_set_where_they_differ_from_the_first_or_a_workload_has_its_own() -> None:
    changed = step(2, nothing(targets=msgspec.structs.replace(TARGETS, itl_ms=80.0, version=3)))
    assert (changed.state, changed.says) == (
        "done",
        ("TTFT within 10,000 ms, gaps between tokens within 80 ms (version 3)",),
    )
    own = step(2, nothing(measured=msgspec.structs.replace(MEASURED, slo="turn TTFT ≤ 500 ms")))
    assert (own.state, own.says) == ("done", ("Workload ours: turn TTFT ≤ 500 ms",))
    assert step(2, nothing(measured=MEASURED)).state == "missing"


@pytest.mark.parametrize(("number", "name"), [(3, "sweep"), (4, "run"), (5, "mixture"), (6, "overload")])
def test_a_result_of_something_else_is_stale_and_can_be_run_again(number: int, name: str) -> None:
    kind: Kind = "run" if name == "mixture" else name  # type: ignore[assignment]
    old = msgspec.structs.replace(NOW, model="older", dtype="int8")
    found = step(number, everything(**{name: Finding(result=result(kind, 9, fingerprint=old))}))
    assert found.state == "stale"
    assert found.differs == ("model: older → m", "weights: int8 → bf16")
    assert (found.act.does, found.act.refs) == ("again", (Ref(kind, 9),))


@pytest.mark.parametrize("state", ["waiting", "running"])
@pytest.mark.parametrize("has_result", [True, False])
def test_what_goes_on_is_watched_and_not_ordered_twice(state: str, has_result: bool) -> None:
    old = result("sweep", 1, fingerprint=msgspec.structs.replace(NOW, model="older")) if has_result else None
    known = everything(sweep=Finding(result=old, newest=Try(ref=Ref("sweep", 2), state=state)))
    third, last = step(3, known), step(7, known)
    assert third.goes_on is not None
    assert (third.act.does, third.act.refs) == ("watch", (Ref("sweep", 2),))
    assert third.state == ("stale" if has_result else "missing")
    assert last.act.does == ("watch" if has_result else "again")


def test_a_later_try_that_failed_is_told_beside_the_result() -> None:
    newest = Try(ref=Ref("overload", 5), state="failed", error="no engine lives")
    found = step(6, everything(overload=Finding(result=result("overload"), newest=newest)))
    assert (found.state, found.act.does) == ("done", "show")
    assert found.warnings == ("A later try, overload test 5, failed: no engine lives.",)


def test_an_overload_test_that_failed_was_done_and_leads_to_what_failed() -> None:
    found = step(6, everything(overload=Finding(result=result("overload", trouble="The queue grew."))))
    assert (found.state, found.warnings, found.act.words) == ("done", ("The queue grew.",), "See what failed")


def test_why_what_there_is_does_not_count_is_said() -> None:
    found = step(3, nothing(sweep=Finding(hint="Sweep 4 was simulated only.")))
    assert found.says == ("No sweep of this pool came to its end.", "Sweep 4 was simulated only.")


def test_a_mixed_run_is_proposed_with_a_workload_of_several_classes() -> None:
    assert step(5, nothing()).act.workload == MIXED_WORKLOAD
    assert step(5, nothing(measured=MEASURED)).act.workload == MIXED_WORKLOAD
    assert step(5, nothing(measured=msgspec.structs.replace(MEASURED, num_classes=2))).act.workload == "ours"
    assert len(READY[MIXED_WORKLOAD].classes) > 1


def test_the_last_step_lists_every_stale_result_and_runs_them_all_again() -> None:
    old = msgspec.structs.replace(NOW, max_model_len=4096)
    known = everything(
        sweep=Finding(result=result("sweep", 3, fingerprint=old)),
        three_ways=Finding(result=result("three_ways", 8, fingerprint=old)),
    )
    last = step(7, known)
    assert (last.state, last.says) == ("stale", ("2 of 5 results are of what was there then.",))
    assert last.differs == ("sweep 3: context limit: 4,096 → 8,192", "comparison 8: context limit: 4,096 → 8,192")
    assert (last.act.words, last.act.refs) == ("Run all 2 again", (Ref("sweep", 3), Ref("three_ways", 8)))


def test_a_result_that_is_evidence_of_two_steps_counts_once() -> None:
    both = Finding(result=result("run", 2))
    assert step(7, everything(run=both, mixture=both)).says == ("All 4 results were measured on this.",)


def test_without_a_living_engine_nothing_is_said_to_hold_or_to_be_stale() -> None:
    steps = judge_steps(everything(now=Fingerprint()))
    assert [each.state for each in steps] == ["done"] * 6 + ["missing"]
    assert "cannot be told" in steps[6].says[0]
    assert steps[6].act.does == "look_for_engines"


def test_a_result_without_a_fingerprint_is_named() -> None:
    last = step(7, everything(run=Finding(result=result("run", 6, fingerprint=Fingerprint()))))
    assert last.warnings == ("Nobody knows on what was measured: run 6.",)
