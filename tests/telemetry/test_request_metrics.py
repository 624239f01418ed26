"""What a web process counts of its requests: totals that add up, and histograms that tell percentiles."""

from __future__ import annotations

import random

import pytest

from serving.contracts.ids import PoolName, RequestId
from serving.gateway.observer import Ended
from serving.telemetry.observers import Observers
from serving.telemetry.request_metrics import RequestMetrics
from tests.telemetry.conftest import POOL
from tests.telemetry.scraping import Scrape, labels_of, scraped, sum_of, text_of

BULK = PoolName("bulk")
MODELS = {POOL: "tiny", BULK: "tiny"}
ENDS = {
    "finished:stop": True,
    "finished:length": True,
    "aborted": True,
    "refused:queue_full": False,
    "refused:queue_timeout": False,
    "failed:engine_error": True,
}


def read(*processes: RequestMetrics) -> Scrape:
    """What Prometheus has of all these processes: `sum` over them."""
    total: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for process in processes:
        for series, value in scraped(text_of(process.collect())).items():
            total[series] = total.get(series, 0.0) + value
    return total


def run_to(metrics: RequestMetrics | Observers, outcome: str, *, pool: PoolName = POOL, tokens: int = 5) -> None:
    metrics.submitted(pool)
    if ENDS[outcome]:
        metrics.scheduled(pool, queue_seconds=0.2)
        metrics.first_token(pool, ttft_seconds=0.3)
        metrics.token_gap(pool, itl_seconds=0.02)
    end(metrics, outcome, pool=pool, was_scheduled=ENDS[outcome], tokens=tokens)


def end(
    metrics: RequestMetrics | Observers, outcome: str, *, was_scheduled: bool, pool: PoolName = POOL, tokens: int = 0
) -> None:
    metrics.ended(
        Ended(
            request_id=RequestId(outcome),
            pool=pool,
            outcome=outcome,
            was_scheduled=was_scheduled,
            e2e_seconds=2.0,
            prompt_tokens=3,
            completion_tokens=tokens,
        )
    )


def assert_balanced(scrape: Scrape, *, pool: PoolName = POOL) -> None:
    """Submitted is what ended and what is in flight."""
    ended = sum_of(scrape, "footplate_requests_ended_total", pool=pool)
    in_flight = sum_of(scrape, "footplate_requests_in_flight", pool=pool)
    assert sum_of(scrape, "footplate_requests_submitted_total", pool=pool) == ended + in_flight


def test_books_balance_at_every_reading_whatever_becomes_of_requests() -> None:
    """C89: no request is missing from the counts, of whatever end, at whatever moment one looks."""
    metrics, numbers = RequestMetrics(MODELS), random.Random(7)
    waiting = running = num_scheduled = 0
    for _ in range(400):
        step = numbers.choice(["come", "come", "start", "end", "end"])
        if step == "come":
            metrics.submitted(POOL)
            waiting += 1
        elif step == "start" and waiting:
            metrics.scheduled(POOL, queue_seconds=numbers.random())
            waiting, running, num_scheduled = waiting - 1, running + 1, num_scheduled + 1
        elif step == "end" and running and numbers.random() < 0.7:
            end(metrics, numbers.choice(["finished:stop", "aborted", "failed:engine_error"]), was_scheduled=True)
            running -= 1
        elif step == "end" and waiting:
            end(metrics, numbers.choice(["refused:queue_full", "aborted"]), was_scheduled=False)
            waiting -= 1
        scrape = read(metrics)
        assert_balanced(scrape)
        assert sum_of(scrape, "footplate_requests_in_flight", state="waiting") == waiting
        assert sum_of(scrape, "footplate_requests_in_flight", state="running") == running
        assert sum_of(scrape, "footplate_request_queue_seconds_count") == num_scheduled


def test_every_outcome_has_its_count_and_tokens_count_whatever_the_end() -> None:
    """C89: an aborted request is in the counts and in the tokens alike."""
    metrics = RequestMetrics(MODELS)
    for times, outcome in enumerate(ENDS, start=1):
        for _ in range(times):
            run_to(metrics, outcome)
    scrape = read(metrics)
    for times, outcome in enumerate(ENDS, start=1):
        kind, _, code = outcome.partition(":")
        counted = sum_of(scrape, "footplate_requests_ended_total", pool=POOL, model="tiny", outcome=kind, code=code)
        assert counted == times
    assert sum_of(scrape, "footplate_request_prompt_tokens_total") == 3 * 21
    assert sum_of(scrape, "footplate_request_generated_tokens_total") == 5 * 21
    assert sum_of(scrape, "footplate_request_e2e_seconds_count") == 1 + 2  # those that finished
    assert sum_of(scrape, "footplate_request_ttft_seconds_count") == 1 + 2 + 3 + 6  # those that had a token


def test_after_a_mass_abort_nothing_is_in_flight() -> None:
    """C88: two hundred that run or wait go in one moment, and no gauge keeps its last busy value."""
    metrics = RequestMetrics(MODELS)
    for number in range(200):
        metrics.submitted(POOL)
        if number % 2:
            metrics.scheduled(POOL, queue_seconds=0.1)
    assert sum_of(read(metrics), "footplate_requests_in_flight") == 200
    for number in range(200):
        end(metrics, "aborted", was_scheduled=bool(number % 2))
    scrape = read(metrics)
    assert {value for (name, _), value in scrape.items() if name == "footplate_requests_in_flight"} == {0}
    assert sum_of(scrape, "footplate_requests_ended_total", outcome="aborted") == 200


def test_processes_add_up_and_pools_stay_apart() -> None:
    first, second = RequestMetrics(MODELS), RequestMetrics(MODELS)
    run_to(first, "finished:stop")
    run_to(second, "finished:stop")
    run_to(second, "aborted", pool=BULK)
    scrape = read(first, second)
    assert_balanced(scrape)
    assert_balanced(scrape, pool=BULK)
    assert sum_of(scrape, "footplate_requests_submitted_total", pool=POOL) == 2
    assert sum_of(scrape, "footplate_requests_submitted_total", pool=BULK) == 1
    assert sum_of(scrape, "footplate_request_ttft_seconds_count", pool=POOL, model="tiny") == 2


@pytest.mark.parametrize("share", [0.5, 0.9, 0.99])
def test_percentiles_over_all_processes_lie_in_the_bucket_of_the_exact_one(share: float) -> None:
    """No percentile of percentiles: buckets add up, whichever process an interval was taken in."""
    numbers = random.Random(3)
    gaps = [numbers.lognormvariate(-3.5, 0.9) for _ in range(20_000)]
    processes = [RequestMetrics(MODELS) for _ in range(5)]
    for index, gap in enumerate(gaps):
        processes[0 if gap > 0.1 else index % 5].token_gap(POOL, itl_seconds=gap)  # one process has the slow ones
    scrape = read(*processes)
    exact = sorted(gaps)[round(share * len(gaps))]
    name, bound = "footplate_request_itl_seconds_bucket", 0.0
    for labels in sorted(labels_of(scrape, name), key=lambda labels: float(labels["le"])):
        below, bound = bound, float(labels["le"])
        if labels["pool"] == POOL and sum_of(scrape, name, pool=POOL, le=labels["le"]) >= share * len(gaps):
            break
    assert below <= exact <= bound


def test_series_are_there_before_the_first_request() -> None:
    """A rate would else miss what came together with its series."""
    scrape = read(RequestMetrics(MODELS))
    assert sum_of(scrape, "footplate_requests_submitted_total") == 0
    assert {labels["pool"] for labels in labels_of(scrape, "footplate_requests_submitted_total")} == {POOL, BULK}
    assert {(labels["outcome"], labels["code"]) for labels in labels_of(scrape, "footplate_requests_ended_total")} == {
        *(("finished", "stop"), ("finished", "length"), ("aborted", ""))
    }


def test_codes_without_end_make_no_series_without_end() -> None:
    metrics = RequestMetrics(MODELS)
    for number in range(1000):
        metrics.rejected(f"code_{number}")
        metrics.submitted(POOL)
        end(metrics, f"refused:code_{number}", was_scheduled=False)
    scrape = read(metrics)
    assert len(labels_of(scrape, "footplate_rejections_total")) < 100
    assert len(labels_of(scrape, "footplate_requests_ended_total")) < 100
    assert sum_of(scrape, "footplate_rejections_total") == 1000
    assert_balanced(scrape)


def test_what_is_refused_before_any_pool_is_in_no_pools_books() -> None:
    metrics = RequestMetrics(MODELS)
    for code in ("invalid_api_key", "invalid_api_key", "not_found"):
        metrics.rejected(code)
    scrape = read(metrics)
    assert sum_of(scrape, "footplate_rejections_total", code="invalid_api_key") == 2
    assert sum_of(scrape, "footplate_rejections_total") == 3
    assert sum_of(scrape, "footplate_requests_submitted_total") == 0


def test_all_observers_hear_all() -> None:
    heard = [RequestMetrics(MODELS), RequestMetrics(MODELS)]
    observers = Observers(*heard)
    for outcome in ENDS:
        run_to(observers, outcome)
    observers.rejected("not_found")
    counts = ("_tokens_total", "_ended_total", "_bucket", "_count", "_in_flight", "_rejections_total")
    first, second = ({s: v for s, v in read(each).items() if s[0].endswith(counts)} for each in heard)
    assert first == second
    assert sum_of(first, "footplate_requests_ended_total") == len(ENDS)
    assert sum_of(first, "footplate_rejections_total") == 1
    assert sum_of(first, "footplate_request_itl_seconds_count") == 4


def test_the_processs_own_memory_and_files_are_told() -> None:
    scrape = read(RequestMetrics(MODELS))
    assert sum_of(scrape, "process_resident_memory_bytes") > 0
    assert sum_of(scrape, "process_open_fds") > 0
