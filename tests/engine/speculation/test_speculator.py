"""Who is guessed for, how far, and what is kept in mind of whom."""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Seq
from typing import Any

import msgspec
import pytest

from serving.contracts.sampling import Grammar
from serving.contracts.tunables import Tunables
from serving.engine.plan import PlannedChunk, StepPlan
from serving.engine.sequence import Sequence
from serving.engine.speculation.speculator import Speculator
from tests.engine.core.harness import submit

_REPETITIVE = [5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 5, 6]


def sequence_of(name: str = "a", *, prompt: Seq[int] = _REPETITIVE, max_tokens: int = 100, **sampling: Any) -> Sequence:
    request = submit(name, prompt=list(prompt), max_tokens=max_tokens, **sampling)
    return Sequence.of(request, eos_token_ids=frozenset(), serial=1, now=0.0)


def speculator(**tunables: Any) -> Speculator:
    return Speculator(Tunables().changed({"speculation": "on", **tunables}))


def propose(speculator: Speculator, *sequences: Sequence, most: int = 100) -> list[list[int]]:
    speculator.begin_step(sequences, num_decoding=len(sequences))
    return [speculator.propose(sequence, most=most) for sequence in sequences]


def drafted(sequence: Sequence, draft_ids: list[int]) -> PlannedChunk:
    context = sequence.token_ids
    start = len(context) - 1
    return PlannedChunk(
        *(sequence.key, context[start:], start, [], True, sequence.num_generated, sequence.params, False, context),
        num_prompt_tokens=sequence.num_prompt_tokens,
        draft_ids=draft_ids,
    )


def step_of(num_rows: int, *, awaits: int | None = None) -> StepPlan:
    chunk = msgspec.structs.replace(drafted(sequence_of(), []), awaits=awaits)
    return StepPlan(1, (chunk,), num_prefill_tokens=0, num_decode_tokens=num_rows)


def test_guesses_what_followed_before() -> None:
    (draft_ids,) = propose(speculator(), sequence_of())
    assert draft_ids == [7, 8, 9, 10][: len(draft_ids)]
    assert draft_ids


def test_guesses_nothing_where_nothing_was_said_twice() -> None:
    assert propose(speculator(), sequence_of(prompt=range(40))) == [[]]


@pytest.mark.parametrize(
    "sampling",
    [
        {"presence_penalty": 0.5},
        {"frequency_penalty": 0.5},
        {"repetition_penalty": 1.1},
        {"grammar": Grammar("json_object")},
    ],
)
def test_guesses_nothing_where_a_choice_looks_at_those_before_it(sampling: dict[str, Any]) -> None:
    assert propose(speculator(), sequence_of(**sampling)) == [[]]


@pytest.mark.parametrize(("max_tokens", "most"), [(1, 0), (2, 1), (3, 2)])
def test_never_more_than_may_still_be_generated_after_the_next_token(max_tokens: int, most: int) -> None:
    (draft_ids,) = propose(taught(speculator(max_draft_tokens=16)), sequence_of(max_tokens=max_tokens))
    assert len(draft_ids) == most


def taught(speculator: Speculator) -> Speculator:
    """It was right many times."""
    for number in range(60):
        sequence = sequence_of(f"taught-{number}")
        (draft_ids,) = propose(speculator, sequence)
        speculator.note_kept(drafted(sequence, draft_ids), num_kept=len(draft_ids))
    return speculator


def test_never_more_than_the_tunable_and_the_step_allow() -> None:
    assert [len(ids) for ids in propose(taught(speculator(max_draft_tokens=3)), sequence_of())] == [3]
    assert [len(ids) for ids in propose(taught(speculator(max_draft_tokens=9)), sequence_of(), most=4)] == [4]
    assert [len(ids) for ids in propose(taught(speculator(max_draft_tokens=9)), sequence_of())] == [9]


def test_is_left_alone_after_guesses_that_were_never_kept() -> None:
    guessing, sequence = speculator(), sequence_of(prompt=[5, 6] * 8, max_tokens=1000)
    guessed_at = []
    for _ in range(500):
        (draft_ids,) = propose(guessing, sequence)
        if draft_ids:
            guessed_at.append(len(sequence.token_ids))
            guessing.note_kept(drafted(sequence, draft_ids), num_kept=0)
        for num_rows, seconds in ((1, 0.005), (3, 0.010)):  # a guess must be kept every second time
            guessing.note_step(step_of(num_rows), seconds)
        sequence.token_ids.append(5)
    gaps = [after - before for before, after in itertools.pairwise(guessed_at)]
    assert len(guessed_at) < 40
    assert gaps[-3:] == [32, 64, 128]


def test_a_long_prompt_is_read_over_several_steps_and_guessed_for_then() -> None:
    guessing = speculator()
    sequence = sequence_of(prompt=[*range(5000), 17, 18])
    told = [propose(guessing, sequence)[0] for _ in range(4)]
    assert told[:2] == [[], []]
    assert told[3][:1] == [19]


def test_forgets_whoever_no_longer_runs() -> None:
    guessing = speculator()
    gone = [sequence_of(f"gone-{number}") for number in range(100)]
    propose(guessing, *gone)
    stays = sequence_of("stays")
    propose(guessing, stays)
    propose(guessing, stays)
    assert guessing.num_known == 1


def test_another_attempt_under_the_same_key_is_another_text() -> None:
    guessing = speculator()
    propose(guessing, sequence_of("a"))
    assert propose(guessing, sequence_of("a", prompt=range(40))) == [[]]


def test_word_of_a_text_that_was_replaced_meanwhile_is_nobodys() -> None:
    guessing = speculator()
    older = sequence_of("a")
    (draft_ids,) = propose(guessing, older)
    propose(guessing, sequence_of("a"))
    guessing.note_kept(drafted(older, draft_ids), num_kept=0)
    assert len(propose(guessing, sequence_of("b"))[0]) == len(draft_ids), "nothing was learnt of it"


def test_turned_off_it_keeps_nothing() -> None:
    guessing = taught(speculator())
    guessing.retune(Tunables())
    assert not guessing.is_on
    assert guessing.num_known == 0


# --- whether to plan ahead ------------------------------------------------------------------------------------------


def test_waits_for_tokens_behind_which_much_may_be_guessed() -> None:
    guessing = taught(speculator())
    assert not guessing.is_worth_waiting([sequence_of()]), "it is not known what a step costs that is planned ahead"
    guessing.note_step(step_of(1, awaits=0), 0.010)
    assert guessing.is_worth_waiting([sequence_of()])
    assert not guessing.is_worth_waiting([sequence_of("new", prompt=range(40))])
    assert not guessing.is_worth_waiting([sequence_of("last", max_tokens=2)])
    guessing.retune(Tunables())
    assert not guessing.is_worth_waiting([sequence_of()])


def test_does_not_wait_where_steps_that_are_planned_ahead_make_more_tokens_a_second() -> None:
    guessing = taught(speculator(max_draft_tokens=1))
    for _ in range(50):
        guessing.note_step(step_of(1), 0.030)
        guessing.note_step(step_of(1, awaits=0), 0.010)
    assert not guessing.is_worth_waiting([sequence_of()])
    for _ in range(200):
        guessing.note_step(step_of(1), 0.012)
    assert guessing.is_worth_waiting([sequence_of()])


@pytest.mark.parametrize(("seconds", "least", "most"), [(0.030, 2, 6), (0.010, 990, 998)])
def test_what_does_not_pay_is_tried_once_in_a_while(seconds: float, least: int, most: int) -> None:
    """Waiting where it is slow, and planning ahead where waiting is not."""
    guessing = taught(speculator(max_draft_tokens=1))
    waited = 0
    for _ in range(1000):
        if guessing.is_worth_waiting([sequence_of()]):
            waited += 1
            guessing.note_step(step_of(1), seconds)
        else:
            guessing.note_step(step_of(1, awaits=0), 0.010)
    assert least <= waited <= most
    assert not guessing.is_worth_waiting([sequence_of("new", prompt=range(40))])
