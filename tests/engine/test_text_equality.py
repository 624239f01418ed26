"""The default model's text, logits and log probabilities in bf16 are those of each request alone, bit for bit, whatever
the engine does meanwhile."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.contracts.tunables import describe
from tests.engine.playing import PLENTY, RETUNED, Subject, house_of
from tests.engine.various import various_requests

pytestmark = [pytest.mark.model, pytest.mark.timeout(3600)]

_NUM_BLOCKS = 400


@pytest.fixture(
    scope="module",
    params=[
        ("cpu", 40, 18, 2),
        ("torch", 12, 16, 1),  # more threads are dear beside other tests, and are in test_logits_equality.py
        pytest.param(("cpu", 500, 40, 2), marks=pytest.mark.long),
        pytest.param(("torch", 100, 30, 2), marks=pytest.mark.long),
    ],
    ids=lambda param: f"{param[0]}-{param[1]}",
)
def subject(request: pytest.FixtureRequest, default_model: Path, kernels_folder: Path) -> Iterator[Subject]:
    """Each request alone with one thread, and a house whose engine has as many as it says."""
    backend, num_requests, max_tokens, num_threads = request.param
    options = {"num_blocks": _NUM_BLOCKS, "backend": backend, "kernels_folder": kernels_folder}
    with house_of(default_model, num_threads=1, **options) as house:
        subject = Subject.of(house, various_requests(num_requests, max_tokens=max_tokens))
    with house_of(default_model, num_threads=num_threads, **options) as house:
        yield Subject(house, subject.requests, subject.alone)


def test_the_requests_are_of_every_kind(subject: Subject) -> None:
    submits = [submit for request in subject.requests for submit in request]
    assert {submit.params.greedy for submit in submits} == {True, False}
    assert any(len(request) > 1 for request in subject.requests)
    lengths = [len(submit.prompt_ids) for submit in submits]
    assert min(lengths) == 1
    assert max(lengths) > 200
    params = [submit.params for submit in submits]
    assert any(one.repetition_penalty != 1 for one in params)
    answers = subject.alone.values()
    assert any(answer.logprobs for answer in answers)
    assert any(answer.prompt_logprobs for answer in answers)
    assert {answer.reason for answer in answers} == {"stop", "length"}


def test_text_in_a_batch_that_others_join_and_leave(subject: Subject) -> None:
    subject.check(PLENTY)
    assert subject.house.largest_company >= 5


def test_text_from_small_chunks_and_a_small_budget(subject: Subject) -> None:
    subject.check(PLENTY | {"max_running": 12, "max_batch_tokens": 32, "max_prefill_chunk": 7, "prefill_share": 0.3})


@pytest.mark.parametrize("order", ["fcfs", "priority", "fair"])
def test_text_of_the_preempted_in_every_order(subject: Subject, order: str) -> None:
    """Memory for about three of the eight that may run, then for all of them, in turn."""
    memory = {"kv_limit_ratio": (12 / _NUM_BLOCKS, 60 / _NUM_BLOCKS)}
    counts = subject.check(PLENTY | {"max_running": 8, "order": order}, retuned=memory)
    assert counts.preemptions_total >= len(subject.requests) // 5


def test_text_after_prefix_hits_among_others_and_in_a_second_pass(subject: Subject) -> None:
    counts = subject.check(PLENTY | {"max_running": 6, "prefix_caching": "on"}, num_passes=2)
    assert counts.prefix_hit_tokens_total > counts.prefix_query_tokens_total // 4


def test_text_in_static_batches_that_wait_for_company(subject: Subject) -> None:
    counts = subject.check(PLENTY | {"mode": "static", "max_running": 7, "batch_window_ms": 30.0})
    assert counts.padded_tokens_total > 0


def test_every_tunable_is_retuned() -> None:
    assert set(RETUNED) == {spec.name for spec in describe()}


def test_text_while_every_tunable_changes_at_random(subject: Subject) -> None:
    assert subject.check({}, retuned=RETUNED).tunables_version > 10


def test_text_resumed_after_the_tokens_that_another_engine_delivered(subject: Subject) -> None:
    subject.check_resumed(PLENTY | {"max_prefill_chunk": 20})
