"""A whole engine whose answers follow grammars: valid to the last byte, and the same whatever happens meanwhile."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest
import torch

from serving.contracts.ids import OwnerId, RequestId
from serving.contracts.messages import SequenceKey, Submit
from serving.contracts.sampling import Grammar, SamplingParams
from serving.engine.model_runner import ModelRunner
from tests.engine.driving import random_prompts, small_runner
from tests.engine.grammar_tokens import EOS, VOCABULARY_SIZE, byte_grammars, text_of
from tests.engine.playing import PLENTY, Answer, Answers, Playhouse, playhouse

pytestmark = pytest.mark.heavy

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "tags": {"type": "array", "items": {"enum": ["é", "ab", True, 12]}, "maxItems": 3},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
    },
    "required": ["name", "tags", "age"],
    "additionalProperties": False,
}
_PATTERN = r"(true|false|[a-f]{2,9})(-\d{1,3}){2,4}"
_GRAMMARS = (
    Grammar("json_schema", json.dumps(_SCHEMA)),
    Grammar("regex", _PATTERN),
    Grammar("lark", 'start: "[" (start ",")* "12" "]"'),
    None,
)
_SAMPLING: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0},
    {},
    {"temperature": 1.5, "top_p": 0.8},
    {"top_k": 4, "num_logprobs": 2},
    {"frequency_penalty": 1.0, "repetition_penalty": 1.3},
)


def _requests() -> list[list[Submit]]:
    """With every grammar and none, sampled in every way, some with two choices."""
    count = len(_GRAMMARS) * len(_SAMPLING)
    prompts = random_prompts([1 + 7 * index % 50 for index in range(count)], vocab_size=VOCABULARY_SIZE, seed=3)
    requests = []
    for index, prompt in enumerate(prompts):
        params = SamplingParams(
            max_tokens=60, seed=index, grammar=_GRAMMARS[index % len(_GRAMMARS)], **_SAMPLING[index % len(_SAMPLING)]
        )
        keys = [SequenceKey(RequestId(f"r{index}"), choice) for choice in range(1 + index % 2)]
        requests.append(
            [
                Submit(key=key, attempt=1, owner_id=OwnerId("o"), tenant="t", prompt_ids=prompt, params=params)
                for key in keys
            ]
        )
    return requests


_REQUESTS = _requests()


@pytest.fixture(scope="module")
def house(tiny_model: Callable[[str], Path]) -> Iterator[Playhouse]:
    before = torch.get_num_threads()
    runner = small_runner(tiny_model("llama"), masks=byte_grammars(), num_threads=1)
    with playhouse(runner) as house:
        yield house
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def alone(house: Playhouse) -> Answers:
    """What each is told that has the engine for itself."""
    found: Answers = {}
    for submit in (submit for request in _REQUESTS for submit in request):
        found |= house.play([[submit]], PLENTY)[0][0]
    return found


def _told(answers: Answers) -> dict[SequenceKey, tuple[list[int], str]]:
    return {key: (answer.token_ids, answer.reason) for key, answer in answers.items()}


def _ask(house: Playhouse, grammar: Grammar, **params: Any) -> Answer:
    full = {"max_tokens": 80, "seed": 5, **params}
    key = SequenceKey(RequestId("one"), 0)
    params_ = SamplingParams(**full, grammar=grammar)
    submit = Submit(key=key, attempt=1, owner_id=OwnerId("o"), tenant="t", prompt_ids=[1, 9, 30], params=params_)
    return house.play([[submit]], PLENTY)[0][0][key]


def test_every_answer_that_ends_by_itself_is_valid(alone: Answers) -> None:
    validator = jsonschema_rs.validator_for(_SCHEMA)
    kinds = set()
    for request in _REQUESTS:
        for submit in request:
            answer, grammar = alone[submit.key], submit.params.grammar
            text = text_of(answer.token_ids)
            if grammar is None:
                continue
            if answer.reason == "length":
                assert len(answer.token_ids) == submit.params.max_tokens
                continue
            assert answer.reason == "stop"
            assert answer.token_ids.index(EOS) == len(answer.token_ids) - 1
            kinds.add(grammar.kind)
            match grammar.kind:
                case "json_schema":
                    assert validator.is_valid(json.loads(text)), text
                case "regex":
                    assert re.fullmatch(_PATTERN, text), text
                case _:
                    assert json.loads(text)[-1] == 12, text
    assert kinds == {"json_schema", "regex", "lark"}


def test_choices_of_one_request_differ(alone: Answers) -> None:
    pairs = [request for request in _REQUESTS if len(request) == 2 and request[0].params.grammar is not None]
    answers = [[alone[submit.key].token_ids for submit in pair] for pair in pairs]
    assert any(first != second for first, second in answers)


def test_answers_in_a_batch_with_plain_ones_are_those_alone(house: Playhouse, alone: Answers) -> None:
    house.largest_company = 0
    answers, _ = house.play(_REQUESTS, PLENTY)
    assert _told(answers[0]) == _told(alone)
    assert house.largest_company >= 8


def test_plain_answers_are_those_of_a_batch_without_grammars(house: Playhouse, alone: Answers) -> None:
    plain = [request for request in _REQUESTS if request[0].params.grammar is None]
    answers, _ = house.play(plain, PLENTY)
    assert _told(answers[0]) == {key: told for key, told in _told(alone).items() if key in answers[0]}


def test_answers_after_preemptions_are_those_alone(house: Playhouse, alone: Answers) -> None:
    num_blocks = house.runner.num_blocks
    memory = {"kv_limit_ratio": (10 / num_blocks, 40 / num_blocks)}
    answers, counts = house.play(_REQUESTS, PLENTY | {"max_running": 8}, retuned=memory)
    assert _told(answers[0]) == _told(alone)
    assert counts.preemptions_total >= 5


def test_answers_where_many_take_turns_are_those_alone(house: Playhouse, alone: Answers) -> None:
    answers, _ = house.play(_REQUESTS, PLENTY | {"max_running": 24, "max_batch_tokens": 16, "max_prefill_chunk": 3})
    assert _told(answers[0]) == _told(alone)


def test_an_attempt_that_begins_after_some_tokens_goes_on_with_the_rest(house: Playhouse, alone: Answers) -> None:
    chance = random.Random(1)
    expected = {}
    resumed = []
    for submit in (submit for request in _REQUESTS for submit in request):
        answer = alone[submit.key]
        num_delivered = chance.randrange(len(answer.token_ids))
        expected[submit.key] = (answer.token_ids[num_delivered:], answer.reason)
        resumed.append([msgspec.structs.replace(submit, attempt=2, generated_ids=answer.token_ids[:num_delivered])])
    answers, _ = house.play(resumed, PLENTY)
    assert _told(answers[0]) == expected


def test_what_is_cut_off_by_max_tokens_ends_with_length(house: Playhouse) -> None:
    answer = _ask(house, _GRAMMARS[0], max_tokens=4)  # type: ignore[arg-type]
    assert (answer.reason, len(answer.token_ids)) == ("length", 4)


def test_a_complete_text_ends_although_min_tokens_are_not_reached(house: Playhouse) -> None:
    answer = _ask(house, Grammar("regex", "abc"), min_tokens=50)
    assert (answer.reason, text_of(answer.token_ids)) == ("stop", "abc")


def test_min_tokens_keep_a_text_going_that_may_go_on(house: Playhouse) -> None:
    answer = _ask(house, Grammar("regex", "[a-z]*"), min_tokens=20)
    assert len(answer.token_ids) >= 20
    assert re.fullmatch("[a-z]*", text_of(answer.token_ids))


def test_a_stop_token_ends_the_text_before_the_grammar_does(house: Playhouse) -> None:
    closing = byte_grammars()._tokenizer.tokenize_str("}")[0]
    answer = _ask(house, Grammar("json_object"), stop_token_ids=(closing,), temperature=0.0)
    assert answer.reason in ("stop", "length")
    assert closing not in answer.token_ids[:-1]


def test_ids_beyond_the_tokenizer_are_never_chosen(house: Playhouse) -> None:
    answer = _ask(house, Grammar("regex", r"(.|\n)*"), max_tokens=200, temperature=2.0)
    assert max(answer.token_ids) < VOCABULARY_SIZE - 20


def test_a_runner_without_masks_ends_what_follows_a_grammar_and_nothing_else(tiny_model: Callable[[str], Path]) -> None:
    runner = ModelRunner(tiny_model("llama"), kv_cache_bytes=1 << 20, dtype="float32", num_threads=1)
    with playhouse(runner) as house, pytest.raises(AssertionError, match="this engine knows no grammars"):
        _ask(house, Grammar("json_object"))
