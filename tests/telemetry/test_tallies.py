"""What requests came to, second by second, whatever happens to batches, owners and Redis."""

from __future__ import annotations

from serving.contracts.ids import OwnerId
from serving.telemetry.frames import OutcomeRates
from serving.telemetry.intervals import IntervalBatch, IntervalRecorder
from serving.telemetry.tallies import OutcomeTally, outcomes_of, refusals_of
from tests.telemetry.conftest import POOL, Clock

NOW = 1_750_000_000


def owner(name: str = "web-1") -> IntervalRecorder:
    return IntervalRecorder(owner_id=OwnerId(name), pool=POOL, clock=Clock())


def end(recorder: IntervalRecorder, outcome: str, count: int = 1) -> None:
    for _ in range(count):
        recorder.count_submitted()
        recorder.count_ended(outcome, was_running=False)


def flushed(recorder: IntervalRecorder) -> IntervalBatch:
    batch = recorder.flush()
    assert batch is not None
    return batch


def test_rates_are_of_the_last_five_whole_seconds() -> None:
    tally, recorder = OutcomeTally(), owner()
    end(recorder, "finished:stop", 10)
    end(recorder, "finished:length", 5)
    end(recorder, "aborted", 200)
    end(recorder, "failed:engine_lost")
    end(recorder, "refused:queue_full", 2)
    tally.take_batch(flushed(recorder), at=NOW - 5)
    expected = OutcomeRates(
        finished_per_second=3.0, refused_per_second=0.4, failed_per_second=0.2, aborted_per_second=40.0
    )
    assert tally.rates(now=NOW) == expected
    assert tally.rates(now=NOW - 5) == OutcomeRates()
    assert tally.rates(now=NOW + 1) == OutcomeRates()


def test_requests_that_met_the_objectives_are_goodput() -> None:
    tally = OutcomeTally()
    counts = {"submitted": 5, "finished:stop": 5, "slo_met": 4}
    batch = flushed_with(counts)
    tally.take_batch(batch, at=NOW - 1)
    assert tally.rates(now=NOW).goodput_per_second == 0.8


def flushed_with(counts: dict[str, int], *, sequence: int = 1, totals: dict[str, int] | None = None) -> IntervalBatch:
    recorder = owner()
    recorder.count_submitted()
    batch = flushed(recorder)
    books = type(batch.totals)(counts=counts if totals is None else totals)
    return IntervalBatch(
        owner_id=batch.owner_id,
        pool=batch.pool,
        sequence=sequence,
        seconds=0.5,
        intervals=batch.intervals,
        counts=counts,
        totals=books,
    )


def test_batches_that_never_came_are_made_up_for() -> None:
    tally, recorder = OutcomeTally(), owner()
    end(recorder, "finished:stop")
    tally.take_batch(flushed(recorder), at=NOW)
    end(recorder, "finished:stop", 7)
    flushed(recorder)  # lost on its way
    end(recorder, "finished:stop", 2)
    tally.take_batch(flushed(recorder), at=NOW + 1)
    assert tally.total(since=NOW, until=NOW + 2)["finished:stop"] == 10


def test_who_was_heard_never_before_counts_with_its_own_batch_alone() -> None:
    tally = OutcomeTally()
    tally.take_batch(flushed_with({"finished:stop": 1}, sequence=900, totals={"finished:stop": 10_000}), at=NOW)
    assert tally.total(since=NOW, until=NOW + 1) == {"finished:stop": 1}


def test_counters_of_no_owner_count_by_their_growth_and_never_by_their_return() -> None:
    tally = OutcomeTally()
    tally.take_counters(books={"failed:owner_lost": 9}, rejections={"invalid_api_key": 50}, at=NOW)
    assert not tally.total(since=NOW, until=NOW + 1)
    tally.take_counters(books={"failed:owner_lost": 12}, rejections={"invalid_api_key": 51, "bad": 2}, at=NOW + 1)
    grown = {"failed:owner_lost": 3, "rejected:invalid_api_key": 1, "rejected:bad": 2}
    assert tally.total(since=NOW, until=NOW + 2) == grown
    # Redis lost everything, and counts from nought.
    tally.take_counters(books={}, rejections={}, at=NOW + 2)
    tally.take_counters(books={}, rejections={"invalid_api_key": 4}, at=NOW + 3)
    assert tally.total(since=NOW + 2, until=NOW + 4) == {"rejected:invalid_api_key": 4}


def test_refusals_of_the_last_seconds_are_told_by_code() -> None:
    tally, recorder = OutcomeTally(), owner()
    end(recorder, "refused:queue_full", 3)
    end(recorder, "finished:stop", 100)
    tally.take_batch(flushed(recorder), at=NOW - 5)
    tally.take_counters(books={}, rejections={}, at=NOW - 1)
    tally.take_counters(books={}, rejections={"invalid_api_key": 7}, at=NOW - 1)
    assert list(tally.refusals_per_second(now=NOW).items()) == [("rejected:invalid_api_key", 1.4), ("queue_full", 0.6)]
    assert tally.refusals_per_second(now=NOW + 1) == {"rejected:invalid_api_key": 1.4}


def test_what_is_older_than_a_quarter_of_an_hour_goes_and_so_do_owners() -> None:
    tally = OutcomeTally()
    tally.take_batch(flushed_with({"finished:stop": 1}), at=NOW)
    tally.expire(now=NOW + 800)
    assert tally.total(since=NOW, until=NOW + 1)
    tally.expire(now=NOW + 1000)
    assert not tally.total(since=NOW, until=NOW + 1)
    # Taken for one that is heard for the first time.
    tally.take_batch(flushed_with({"finished:stop": 2}, totals={"finished:stop": 500}), at=NOW + 1000)
    assert tally.total(since=NOW + 1000, until=NOW + 1001) == {"finished:stop": 2}


def test_kinds_of_outcomes_are_told_apart() -> None:
    counts = {"finished:stop": 1, "finished:length": 2, "refused:a": 3, "rejected:b": 4, "failed:c": 5, "aborted": 6}
    assert outcomes_of(counts) == {"finished": 3, "refused": 3, "failed": 5, "aborted": 6}
    assert refusals_of(counts) == {"rejected:b": 4, "a": 3}
