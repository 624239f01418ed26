"""The recorder: what one flush brings, and books that balance at each."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.contracts.ids import EngineId, OwnerId
from serving.telemetry.intervals import IntervalRecorder, OwnerTotals, decode_batch, encode_batch
from serving.telemetry.sketches import sketch_values, summarise
from tests.telemetry.conftest import POOL, Clock


@pytest.fixture
def recorder(clock: Clock) -> IntervalRecorder:
    return IntervalRecorder(owner_id=OwnerId("owner"), pool=POOL, clock=clock)


def test_flush_brings_what_was_measured_since_the_last_one(recorder: IntervalRecorder, clock: Clock) -> None:
    recorder.record_queue(0.1)
    recorder.record_ttft(0.2)
    for gap in (0.01, 0.02, 0.03):
        recorder.record_itl(gap)
    recorder.record_e2e(1.0)
    clock.now += 0.5
    batch = recorder.flush()
    assert batch is not None
    intervals = batch.intervals
    counts = [sketch.count for sketch in (intervals.queue_time, intervals.ttft, intervals.itl, intervals.e2e)]
    assert counts == [1, 1, 3, 1]
    assert summarise(intervals.itl).p50 == pytest.approx(0.02, rel=0.01)
    assert (batch.sequence, batch.seconds) == (1, 0.5)
    assert recorder.flush() is None


def test_the_shares_of_engines_add_up_to_the_whole_but_for_what_none_had(recorder: IntervalRecorder) -> None:
    one, two = EngineId("one"), EngineId("two")
    for engine_id, gap in ((one, 0.01), (two, 0.02), (two, 0.02)):
        recorder.record_itl(gap, engine_id=engine_id)
        recorder.count_submitted()
        recorder.count_ended("finished:stop", was_running=False, engine_id=engine_id)
    recorder.count_submitted()
    recorder.count_ended("refused:queue_full", was_running=False)
    batch = recorder.flush()
    assert batch is not None
    assert decode_batch(encode_batch(batch)) == batch
    assert {id_: (share.intervals.itl.count, share.ended) for id_, share in batch.by_engine.items()} == {
        one: (1, {"finished:stop": 1}),
        two: (2, {"finished:stop": 2}),
    }
    assert batch.intervals.itl == sketch_values([0.01, 0.02, 0.02])
    recorder.record_itl(0.01, engine_id=one)
    second = recorder.flush()
    assert second is not None
    assert list(second.by_engine) == [one]


def test_counts_are_of_the_batch_and_totals_since_the_start(recorder: IntervalRecorder) -> None:
    recorder.count_submitted()
    recorder.count_submitted()
    recorder.count_scheduled()
    first = recorder.flush()
    recorder.count_ended("finished:stop", was_running=True)
    recorder.count_tokens(prompt=7, completion=3)
    recorder.count_submitted()
    recorder.count_ended("refused:queue_full", was_running=False)
    second = recorder.flush()
    assert first is not None
    assert second is not None
    assert first.totals == OwnerTotals(counts={"submitted": 2}, num_waiting=1, num_running=1)
    changes = {"finished:stop": 1, "prompt_tokens": 7, "completion_tokens": 3, "refused:queue_full": 1, "submitted": 1}
    assert second.counts == changes
    assert second.totals == OwnerTotals(counts={**changes, "submitted": 3}, num_waiting=1, num_running=0)
    assert second.sequence == 2


def test_change_of_gauges_alone_is_published(recorder: IntervalRecorder) -> None:
    recorder.count_submitted()
    recorder.flush()
    recorder.count_scheduled()
    batch = recorder.flush()
    assert batch is not None
    assert (batch.totals.num_waiting, batch.totals.num_running) == (0, 1)


def test_idle_owner_shows_every_five_seconds_that_it_lives(recorder: IntervalRecorder, clock: Clock) -> None:
    clock.now += 100
    assert recorder.flush() is None  # it has nothing to restore yet
    recorder.count_submitted()
    recorder.count_ended("refused:queue_full", was_running=False)
    batch = recorder.flush()
    assert batch is not None
    clock.now += 4.9
    assert recorder.flush() is None
    clock.now += 0.1
    proof = recorder.flush()
    assert proof is not None
    assert (proof.counts, proof.totals) == ({}, batch.totals)


def test_batch_survives_its_encoding(recorder: IntervalRecorder) -> None:
    recorder.record_itl(0.25)
    recorder.count_submitted()
    recorder.count_ended("refused:queue_full", was_running=False)
    batch = recorder.flush()
    assert batch is not None
    assert decode_batch(encode_batch(batch)) == batch


OUTCOMES = ("finished:stop", "finished:length", "aborted", "failed:engine_error")


@given(st.lists(st.tuples(st.sampled_from(["submit", "schedule", "end", "refuse", "flush"]), st.integers(0, 9))))
def test_books_balance_at_every_flush(actions: list[tuple[str, int]]) -> None:
    recorder = IntervalRecorder(owner_id=OwnerId("owner"), pool=POOL, clock=Clock())
    waiting, running = 0, 0
    for action, choice in [*actions, ("submit", 0), ("flush", 0)]:
        if action == "submit":
            recorder.count_submitted()
            waiting += 1
        elif action == "schedule" and waiting:
            recorder.count_scheduled()
            waiting, running = waiting - 1, running + 1
        elif action == "end" and (waiting or running):
            was_running = running > 0 and (choice % 2 == 0 or not waiting)
            recorder.count_ended(OUTCOMES[choice % 4], was_running=was_running)
            waiting, running = waiting - (not was_running), running - was_running
        elif action == "refuse":
            recorder.count_submitted()
            recorder.count_ended("refused:queue_full", was_running=False)
        elif action == "flush":
            batch = recorder.flush()
            if batch is None:
                continue
            totals = batch.totals
            ended = sum(count for name, count in totals.counts.items() if name != "submitted")
            assert (totals.num_waiting, totals.num_running) == (waiting, running)
            assert totals.counts.get("submitted", 0) == ended + waiting + running
