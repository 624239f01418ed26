"""When a choice is submitted again, and when it is given up."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from serving.contracts.errors import EngineFailure, QueueTimeout, Unavailable
from serving.contracts.ids import EngineId, OwnerId, RequestId
from serving.contracts.messages import SequenceKey
from serving.contracts.sampling import SamplingParams
from serving.contracts.tunables import Tunables
from serving.gateway.failover import ACCEPT_SECONDS, MAX_LOST_ENGINES, SILENCE_SECONDS, Failover
from serving.gateway.generation import Generation
from serving.gateway.requests import Choice, InFlight
from serving.gateway.stream import GenerationStream
from serving.gateway.text.detokenizer import Detokenizer
from serving.gateway.text.stop_strings import StopStrings
from serving.gateway.text.tokenizer import TextModel
from tests.gateway.harness import POOL

ENGINE = EngineId("engine")
PATIENCE = 30.0


@pytest.fixture
def request_in_flight(text_model: TextModel) -> InFlight:
    """A request of one choice that arrived, and was submitted, at second 0."""
    params = SamplingParams(max_tokens=5, seed=0)
    generation = Generation(
        request_id=RequestId("r"), pool=POOL, tenant="t", prompt_ids=[1], params=(params,), stop=(), arrived_at=0.0
    )
    choice = Choice(
        key=SequenceKey(RequestId("r"), 0),
        params=params,
        detokenizer=Detokenizer(text_model),
        stop_strings=StopStrings(()),
        submitted_at=0.0,
        last_heard_at=0.0,
        attempt=1,
    )
    stream = GenerationStream(num_prompt_tokens=1, num_choices=1, on_close=lambda: None)
    return InFlight(generation=generation, text_model=text_model, choices=[choice], stream=stream, permit=None)


def judge(request: InFlight, **given: Any) -> Any:
    failover = Failover(failover_seconds=PATIENCE)
    facts = {"now": 1.0, "tunables": Tunables(), "living": frozenset({ENGINE}), "lost": False} | given
    facts.setdefault("has_takers", bool(facts["living"]))
    return failover.judge(request, request.choices[0], **facts)


def test_waits_in_peace(request_in_flight: InFlight) -> None:
    assert judge(request_in_flight) is None


def test_what_nobody_took_in_time_is_refused(request_in_flight: InFlight) -> None:
    assert isinstance(judge(request_in_flight, now=2.0, tunables=Tunables(max_queue_wait_ms=1000)), QueueTimeout)


@pytest.mark.parametrize(("own", "refused"), [(None, False), (1.5, True), (9.0, False)])
def test_own_timeout_counts_where_it_is_the_smaller(
    request_in_flight: InFlight, own: float | None, refused: bool
) -> None:
    request_in_flight.generation = dataclasses.replace(request_in_flight.generation, timeout_seconds=own)
    verdict = judge(request_in_flight, now=2.0, tunables=Tunables(max_queue_wait_ms=3000))
    assert isinstance(verdict, QueueTimeout) == refused
    assert isinstance(judge(request_in_flight, now=4.0, tunables=Tunables(max_queue_wait_ms=3000)), QueueTimeout)
    request_in_flight.choices[0].started = True
    assert judge(request_in_flight, now=99.0) is None


def test_what_an_engine_took_is_the_engines_to_refuse(request_in_flight: InFlight) -> None:
    request_in_flight.choices[0].engine_id = ENGINE
    assert judge(request_in_flight, now=2.0, tunables=Tunables(max_queue_wait_ms=1000)) is None


def test_goes_on_elsewhere_when_its_engine_dies_but_not_for_ever(request_in_flight: InFlight) -> None:
    choice = request_in_flight.choices[0]
    choice.started = True
    for _ in range(MAX_LOST_ENGINES - 1):
        choice.engine_id = ENGINE
        assert judge(request_in_flight, living=frozenset()) == "resubmit"
    assert isinstance(judge(request_in_flight, living=frozenset()), EngineFailure)


def test_nobody_is_judged_dead_while_nothing_is_known(request_in_flight: InFlight) -> None:
    request_in_flight.choices[0].engine_id = ENGINE
    assert judge(request_in_flight, living=None) is None
    assert request_in_flight.choices[0].num_lost_engines == 0


def test_silence_of_a_living_engine_means_that_word_was_lost(request_in_flight: InFlight) -> None:
    request_in_flight.choices[0].engine_id = ENGINE
    assert judge(request_in_flight, now=SILENCE_SECONDS - 1) is None
    assert judge(request_in_flight, now=SILENCE_SECONDS + 1) == "resubmit"


def test_a_running_request_does_not_wait_for_ever_for_an_engine(request_in_flight: InFlight) -> None:
    request_in_flight.choices[0].started = True
    assert judge(request_in_flight, now=5.0, living=frozenset()) is None
    assert judge(request_in_flight, now=5.0 + PATIENCE - 1, living=frozenset()) is None
    assert isinstance(judge(request_in_flight, now=5.0 + PATIENCE + 1, living=frozenset()), Unavailable)


def test_a_running_request_does_not_wait_for_ever_for_an_engine_that_is_drained(request_in_flight: InFlight) -> None:
    request_in_flight.choices[0].started = True
    assert judge(request_in_flight, now=5.0, has_takers=False) is None
    assert isinstance(judge(request_in_flight, now=5.0 + PATIENCE + 1, has_takers=False), Unavailable)


def test_a_choice_that_waits_does_not_end_its_sibling_at_an_engine_that_drains(request_in_flight: InFlight) -> None:
    waiting = request_in_flight.choices[0]
    waiting.started = True
    sibling = dataclasses.replace(waiting, key=SequenceKey(RequestId("r"), 1), engine_id=ENGINE)
    request_in_flight.choices.append(sibling)
    assert judge(request_in_flight, now=5.0, has_takers=False) is None
    assert judge(request_in_flight, now=5.0 + PATIENCE + 1, has_takers=False) is None
    sibling.finished = True
    assert judge(request_in_flight, now=5.0 + 2 * PATIENCE, has_takers=False) is None
    assert isinstance(judge(request_in_flight, now=5.0 + 3 * PATIENCE, has_takers=False), Unavailable)


def test_acceptance_is_overdue_only_while_nobody_has_accepted(request_in_flight: InFlight) -> None:
    failover, choice = Failover(failover_seconds=PATIENCE), request_in_flight.choices[0]
    assert not failover.is_overdue(choice, now=ACCEPT_SECONDS - 1)
    assert failover.is_overdue(choice, now=ACCEPT_SECONDS + 1)
    choice.engine_id = ENGINE
    assert not failover.is_overdue(choice, now=ACCEPT_SECONDS + 1)


def test_what_was_served_keeps_its_age_in_the_next_engines_queue(request_in_flight: InFlight) -> None:
    (choice,) = request_in_flight.choices
    choice.started = True
    choice.generated_ids = [5, 6]
    assert request_in_flight.next_submit(choice, owner_id=OwnerId("o"), now=90.0).waited_seconds == 90.0


def test_a_choice_that_was_served_nothing_waits_anew_once_its_request_runs(request_in_flight: InFlight) -> None:
    """With its age it would be refused at once, and its siblings have given half an answer."""
    (choice,) = request_in_flight.choices
    assert request_in_flight.next_submit(choice, owner_id=OwnerId("o"), now=30.0).waited_seconds == 30.0
    choice.started = True
    assert request_in_flight.next_submit(choice, owner_id=OwnerId("o"), now=90.0).waited_seconds == 0.0


def test_each_attempt_says_how_urgent_the_request_is_and_with_whom_it_shares(request_in_flight: InFlight) -> None:
    request_in_flight.generation = dataclasses.replace(request_in_flight.generation, priority=-3, cache_salt="pepper")
    (choice,) = request_in_flight.choices
    submits = [request_in_flight.next_submit(choice, owner_id=OwnerId("o"), now=1.0) for _ in range(2)]
    assert [submit.priority for submit in submits] == [-3, -3]
    assert [submit.cache_salt for submit in submits] == ["pepper", "pepper"]
