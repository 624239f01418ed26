"""Pictures of batches: who was in which place, step by step."""

from __future__ import annotations

from typing import Any

from serving.contracts.ids import EngineId, RequestId
from serving.contracts.messages import SequenceKey
from serving.contracts.steps import DECODE, PREEMPTED, PREFILL, StepBatch, StepRow
from serving.contracts.tunables import Tunables
from serving.lab.costs.default import DEFAULT_COST, DEFAULT_ENVELOPE
from serving.lab.experiments.pictures import HELD, Picture, Stretch, picture_of
from serving.lab.simulator.rows import record_steps
from serving.lab.workloads.arrivals import ClosedLoop
from serving.lab.workloads.distributions import Fixed, Uniform
from serving.lab.workloads.workload import RequestClass, Workload

KEYS = [SequenceKey(RequestId(name), 0) for name in "abcdef"]


def a_row(step: int, *, decoding: list[int] = [], others: list[int] = [], waiting: int = 0) -> StepRow:  # noqa: B006
    values: dict[str, Any] = dict.fromkeys(StepRow.__struct_fields__, 0)
    values |= {"step": step, "is_static": False, "failed": False, "ended": [], "waiting": [], "num_waiting": waiting}
    return StepRow(**{**values, "decoding": decoding, "others": others})


def a_batch(*rows: StepRow, engine: str = "one") -> StepBatch:
    return StepBatch(EngineId(engine), KEYS, list(rows), 0)


def test_a_place_that_falls_free_goes_to_the_next_who_joins() -> None:
    picture = picture_of(
        [
            a_batch(a_row(1, others=[0, PREFILL, 8, 1, PREFILL, 4]), a_row(2, decoding=[0, 1])),
            a_batch(a_row(3, decoding=[0], others=[2, PREFILL, 4]), a_row(4, decoding=[0, 2])),
        ]
    )
    assert picture is not None
    assert picture.slots == (
        (Stretch(1, 0, 0, PREFILL), Stretch(1, 1, 3, DECODE)),
        (Stretch(2, 0, 0, PREFILL), Stretch(2, 1, 1, DECODE), Stretch(3, 2, 2, PREFILL), Stretch(3, 3, 3, DECODE)),
    )
    assert picture.empty_share == 0


def test_who_computes_nothing_in_a_step_keeps_the_place() -> None:
    picture = picture_of([a_batch(a_row(1, decoding=[0, 1]), a_row(2, decoding=[1]), a_row(3, decoding=[0, 1]))])
    assert picture is not None
    assert picture.slots[0] == (Stretch(1, 0, 0, DECODE), Stretch(1, 1, 1, HELD), Stretch(1, 2, 2, DECODE))


def test_who_was_preempted_computed_nothing() -> None:
    picture = picture_of([a_batch(a_row(1, decoding=[0]), a_row(2, others=[0, PREEMPTED, 0]), a_row(3, decoding=[0]))])
    assert picture is not None
    assert [stretch.kind for stretch in picture.slots[0]] == [DECODE, HELD, DECODE]


def test_steps_before_a_hole_and_those_of_other_engines_are_left_out() -> None:
    picture = picture_of(
        [a_batch(a_row(1, decoding=[0])), a_batch(a_row(5, decoding=[1])), a_batch(a_row(9), engine="two")]
    )
    assert picture is not None
    assert (picture.first_step, picture.num_steps, len(picture.slots)) == (5, 1, 1)


def test_the_window_is_where_most_join_and_leave() -> None:
    quiet = [a_row(step, decoding=[0]) for step in range(1, 40)]
    busy = [a_row(40 + step, decoding=[0, 1 + step]) for step in range(5)]
    picture = picture_of([a_batch(*quiet, *busy, *[a_row(45 + step, decoding=[0]) for step in range(20)])], widest=10)
    assert picture is not None
    assert picture.first_step <= 40 <= 44 < picture.first_step + picture.num_steps


def test_of_nothing_there_is_no_picture() -> None:
    assert picture_of([]) is None


def simulated(**tunables: Any) -> Picture:
    workload = Workload(
        name="w",
        arrivals=ClosedLoop(8),
        classes=(RequestClass(name="a", prompt_tokens=Fixed(20), output_tokens=Uniform(2, 40)),),
        num_requests=60,
    )
    batch = record_steps(
        workload,
        tunables=Tunables().changed({"max_running": 8, **tunables}),
        envelope=DEFAULT_ENVELOPE,
        cost=DEFAULT_COST,
        num_requests=60,
        most=400,
    )
    picture = picture_of([batch])
    assert picture is not None
    return picture


def test_a_static_batch_leaves_places_empty_that_a_continuous_one_fills() -> None:
    static, continuous = simulated(mode="static"), simulated()
    assert static.empty_share > 0.25
    assert continuous.empty_share < 0.1


def test_nobody_has_two_places_and_no_place_two_sequences() -> None:
    for picture in (simulated(mode="static"), simulated()):
        owners: dict[int, int] = {}
        for place, slot in enumerate(picture.slots):
            taken = [step for stretch in slot for step in range(stretch.first, stretch.last + 1)]
            assert len(taken) == len(set(taken))
            for stretch in slot:
                assert owners.setdefault(stretch.sequence, place) == place
