"""Grammars made to cost time or memory: they end as their own problem, early, and nobody else's."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from serving.contracts.sampling import MAX_GRAMMAR_BYTES, Grammar
from serving.grammars import GrammarMatcher, GrammarProblem, Grammars
from tests.engine.grammar_tokens import EOS, VOCABULARY_SIZE, byte_grammars, byte_tokenizer, text_of

_MOST_TOKENS = 400


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return byte_grammars()


def _admitted(matcher: GrammarMatcher) -> list[int]:
    row = np.zeros(-(-VOCABULARY_SIZE // 32), dtype=np.int32)
    matcher.fill(row)
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


def _follow(grammars: Grammars, grammar: Grammar, *, num_tokens: int = _MOST_TOKENS) -> str:
    """Write so many tokens, ending only where nothing else is admitted; the text."""
    chance = random.Random(1)
    matcher = grammars.compile(grammar)
    written: list[int] = []
    while len(written) < num_tokens and (choices := [token for token in _admitted(matcher) if token != EOS]):
        written.append(chance.choice(choices))
        matcher.advance(written[-1:])
    return text_of(written)


@pytest.mark.parametrize(
    "grammar",
    [
        Grammar("lark", "start: start start start | /[a-z ]/ |"),
        Grammar("lark", "start: a a a\na: a a | /[a-z]/ | b\nb: a b | b a | /[a-f]/ |"),
        Grammar("lark", 'start: start start | "a" |'),
        Grammar("lark", "start: A\nA: /.*a.{10}/ & /.*b.{12}/ & ~/.*c.{14}/"),
        Grammar(
            "lark", "start: " + "|".join(f"r{i}" for i in range(1500)) + "".join(f'\nr{i}: "a{i}"' for i in range(1500))
        ),
        Grammar(
            "json_schema",
            json.dumps({"allOf": [{"anyOf": [{"pattern": f"a{i}{j}.*"} for j in range(8)]} for i in range(8)]}),
        ),
    ],
    ids=lambda grammar: grammar.text[:40],
)
def test_what_would_cost_too_much_is_a_problem_of_its_own(grammars: Grammars, grammar: Grammar) -> None:
    with pytest.raises(GrammarProblem) as problem:
        _follow(grammars, grammar)
    assert 0 < len(str(problem.value)) <= 400
    assert json.loads(_follow(grammars, Grammar("json_schema", '{"type":"integer","maximum":9,"minimum":0}'))) in range(
        10
    )


def _object_of(num_properties: int, *, num_required: int, **schema: Any) -> dict[str, Any]:
    names = [f"p{index}" for index in range(num_properties)]
    return {
        "type": "object",
        "properties": dict.fromkeys(names, schema),
        "required": names[:num_required],
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "schema",
    [
        _object_of(100, num_required=0, type="integer"),
        _object_of(500, num_required=500, type="string", pattern="^[a-z]{1,9}$"),
        {"anyOf": [_object_of(3, num_required=3, const=index) for index in range(200)]},
        {"enum": [f"value number {index} of many" for index in range(2000)]},
        {"$ref": "#/$defs/n", "$defs": {"n": {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 9}}},
        {"type": "array", "items": {"type": "integer"}, "minItems": 100_000, "maxItems": 200_000},
        {"type": "string", "minLength": 100_000},
        {"const": "ab " * (MAX_GRAMMAR_BYTES // 3 - 10)},
    ],
    ids=lambda schema: json.dumps(schema)[:40],
)
def test_what_is_only_large_can_be_followed(grammars: Grammars, schema: dict[str, Any]) -> None:
    assert _follow(grammars, Grammar("json_schema", json.dumps(schema)), num_tokens=100)


def test_what_has_to_follow_is_not_looked_ahead_for(grammars: Grammars) -> None:
    """A long constant would be looked through at each token. Any way to write what must come is admitted instead."""
    for grammar in (
        Grammar("json_schema", '{"const":"abab"}'),
        Grammar("regex", '"abab"'),
        Grammar("lark", 'start: /"abab"/'),
    ):
        matcher = grammars.compile(grammar)
        matcher.advance(byte_tokenizer().encode('"').ids)
        assert [text_of([token]) for token in _admitted(matcher)] == ["a", "ab"]
