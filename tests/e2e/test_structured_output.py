"""Structured output by the official client against a whole stack with the real model."""

from __future__ import annotations

import concurrent.futures
import json
import re
from typing import Any

import jsonschema_rs
import openai
import pydantic
import pytest

pytestmark = [pytest.mark.stack, pytest.mark.model]

QUESTION: Any = [{"role": "user", "content": "Describe the city of Paris in JSON: its name, country and three sights."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "country": {"enum": ["France", "Spain", "Italy"]},
        "population": {"type": "integer", "minimum": 0, "maximum": 99_999_999},
        "sights": {"type": "array", "items": {"type": "string", "maxLength": 24}, "minItems": 1, "maxItems": 3},
    },
    "required": ["name", "country", "population", "sights"],
    "additionalProperties": False,
}
FORMAT: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}


class City(pydantic.BaseModel):
    """As a client of the SDK writes it."""

    name: str
    in_europe: bool


def test_whole_and_streamed_answers_follow_the_schema_and_are_the_same(client: openai.OpenAI, model: str) -> None:
    asked: Any = {"model": model, "messages": QUESTION, "response_format": FORMAT, "seed": 3, "max_tokens": 300}
    whole = client.chat.completions.create(**asked).choices[0]
    assert whole.finish_reason == "stop"
    assert jsonschema_rs.is_valid(SCHEMA, json.loads(whole.message.content or ""))
    chunks = list(client.chat.completions.create(**asked, stream=True))
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == whole.message.content
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_the_sdk_parses_into_a_model_of_the_client(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.parse(
        model=model,
        messages=[{"role": "user", "content": "Is Lyon in Europe? Answer in JSON."}],
        response_format=City,
        max_tokens=200,
        temperature=0,
    )
    assert isinstance(answer.choices[0].message.parsed, City)


def test_any_object_is_an_object(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model, messages=QUESTION, response_format={"type": "json_object"}, temperature=0, max_tokens=400
    ).choices[0]
    if answer.finish_reason == "stop":
        assert isinstance(json.loads(answer.message.content or ""), dict)
    else:
        assert answer.finish_reason == "length"
    assert (answer.message.content or "").startswith("{")


@pytest.mark.parametrize("pattern", [r"(Paris|Lyon|Nice), \d{4}", r"[A-Z][a-z]{2,9}( [a-z]{1,9}){3}\."])
def test_choices_match_the_whole_expression(client: openai.OpenAI, model: str, pattern: str) -> None:
    answer = client.completions.create(
        model=model, prompt="A city and a year: ", n=3, seed=1, max_tokens=60, extra_body={"regex": pattern}
    )
    assert [choice.finish_reason for choice in answer.choices] == ["stop"] * 3
    assert all(re.fullmatch(pattern, choice.text) for choice in answer.choices)


def test_a_grammar_of_ones_own(client: openai.OpenAI, model: str) -> None:
    grammar = 'start: NUMBER (" + " NUMBER){2} " = " NUMBER\nNUMBER: /[1-9][0-9]{0,3}/'
    answer = client.completions.create(
        model=model, prompt="Sums: ", temperature=0, max_tokens=60, extra_body={"grammar": grammar}
    )
    assert re.fullmatch(r"\d+ \+ \d+ \+ \d+ = \d+", answer.choices[0].text)


def test_what_max_tokens_cut_off_ends_with_length(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=QUESTION, response_format=FORMAT, max_tokens=3)
    assert answer.choices[0].finish_reason == "length"


def test_plain_answers_are_the_same_in_company_that_follows_grammars(client: openai.OpenAI, model: str) -> None:
    def tell(seed: int) -> str:
        return (
            client.completions.create(model=model, prompt="Once upon a time", seed=seed, max_tokens=40).choices[0].text
        )

    def form(seed: int) -> str:
        answer = client.chat.completions.create(
            model=model, messages=QUESTION, response_format=FORMAT, seed=seed, max_tokens=300
        )
        return answer.choices[0].message.content or ""

    told, formed = tell(1), form(1)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        tales = [pool.submit(tell, 1 + index % 2) for index in range(4)]
        forms = [pool.submit(form, 1 + index % 2) for index in range(4)]
        assert tales[0].result() == tales[2].result() == told
        assert forms[0].result() == forms[2].result() == formed
    assert jsonschema_rs.is_valid(SCHEMA, json.loads(formed))


@pytest.mark.parametrize("value", [{"type": "json_schema", "schema": {}}, {"type": "x"}, []])
def test_c62_malformed_formats_are_the_clients_fault(client: openai.OpenAI, model: str, value: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refusal:
        client.chat.completions.create(model=model, messages=QUESTION, response_format=value)
    assert refusal.value.param == "response_format"
    assert client.chat.completions.create(model=model, messages=QUESTION, max_tokens=1).choices
