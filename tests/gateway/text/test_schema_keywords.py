"""No keyword of a JSON schema is passed over in silence: it holds, or it is refused by name."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from serving.contracts.sampling import Grammar
from serving.grammars import GrammarProblem, Grammars
from tests.engine.grammar_tokens import EOS, byte_grammars, byte_tokenizer

HELD: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "type": ({"type": ["string", "null"]}, None, 5),
    "enum": ({"enum": ["a", 2]}, 2, 3),
    "const": ({"const": {"a": [1]}}, {"a": [1]}, {"a": [2]}),
    "multipleOf": ({"type": "integer", "multipleOf": 3}, 9, 10),
    "maximum": ({"type": "integer", "maximum": 9}, 9, 10),
    "exclusiveMaximum": ({"type": "integer", "exclusiveMaximum": 9}, 8, 9),
    "exclusiveMaximum of draft 4": ({"type": "integer", "maximum": 9, "exclusiveMaximum": True}, 8, 9),
    "minimum": ({"type": "integer", "minimum": 5}, 5, 4),
    "exclusiveMinimum": ({"type": "integer", "exclusiveMinimum": 5}, 6, 5),
    "maxLength": ({"type": "string", "maxLength": 2}, "ab", "abc"),
    "minLength": ({"type": "string", "minLength": 2}, "ab", "a"),
    "pattern": ({"type": "string", "pattern": "^a+$"}, "aa", "ab"),
    "format": ({"type": "string", "format": "date"}, "2020-02-03", "soon"),
    "maxItems": ({"type": "array", "maxItems": 1}, [1], [1, 2]),
    "minItems": ({"type": "array", "minItems": 1}, [1], []),
    "items": ({"type": "array", "items": {"type": "string"}}, ["a"], [1]),
    "items of draft 7": ({"type": "array", "items": [{"type": "string"}]}, ["a"], [1]),
    "prefixItems": ({"type": "array", "prefixItems": [{"type": "string"}]}, ["a"], [1]),
    "additionalItems": ({"type": "array", "items": [{}], "additionalItems": False}, [1], [1, 2]),
    "properties": ({"type": "object", "properties": {"a": {"type": "null"}}}, {"a": None}, {"a": 1}),
    "required": ({"type": "object", "required": ["a"]}, {"a": 1}, {"b": 1}),
    "additionalProperties": ({"type": "object", "additionalProperties": False}, {}, {"a": 1}),
    "patternProperties": ({"type": "object", "patternProperties": {"^a": {"type": "null"}}}, {"ab": None}, {"ab": 1}),
    "minProperties": ({"type": "object", "minProperties": 1}, {"a": 1}, {}),
    "maxProperties": ({"type": "object", "maxProperties": 1}, {"a": 1}, {"a": 1, "b": 1}),
    "allOf": ({"allOf": [{"type": "integer"}, {"minimum": 3}]}, 3, 2),
    "anyOf": ({"anyOf": [{"type": "null"}, {"const": 1}]}, 1, 2),
    "oneOf": ({"oneOf": [{"type": "null"}, {"const": 1}]}, 1, 2),
    "$ref": ({"$ref": "#/$defs/a", "$defs": {"a": {"const": 1}}}, 1, 2),
    "definitions": ({"$ref": "#/definitions/a", "definitions": {"a": {"const": 1}}}, 1, 2),
    "$anchor": ({"$ref": "#x", "$defs": {"a": {"$anchor": "x", "const": 1}}}, 1, 2),
}
"""By keyword: a schema, a value that it admits and one that it does not."""

REFUSED: dict[str, dict[str, Any]] = {
    "not": {"not": {"type": "null"}},
    "if": {"if": {}, "then": {}},
    "then": {"then": {}},
    "else": {"else": {}},
    "oneOf": {"oneOf": [{"type": "integer"}, {"type": "number"}]},
    "uniqueItems": {"type": "array", "uniqueItems": True},
    "contains": {"type": "array", "contains": {}},
    "minContains": {"type": "array", "minContains": 1},
    "maxContains": {"type": "array", "maxContains": 1},
    "propertyNames": {"type": "object", "propertyNames": {}},
    "dependencies": {"type": "object", "dependencies": {"a": ["b"]}},
    "dependentRequired": {"type": "object", "dependentRequired": {"a": ["b"]}},
    "dependentSchemas": {"type": "object", "dependentSchemas": {"a": {}}},
    "unevaluatedItems": {"type": "array", "unevaluatedItems": False},
    "unevaluatedProperties": {"type": "object", "unevaluatedProperties": False},
    "$dynamicRef": {"$dynamicRef": "#a"},
    "$recursiveRef": {"$recursiveRef": "#"},
    "format": {"type": "string", "format": "no-such-format"},
    "minProperties": {"type": "object", "properties": {"a": {}}, "minProperties": 1},
    "nullable": {"type": "string", "nullable": True},
    "disallow": {"disallow": "string"},
    "divisibleBy": {"type": "integer", "divisibleBy": 2},
    "extends": {"extends": {}},
    "exclusiveMinimum": {"type": "integer", "exclusiveMinimum": True},
    "exclusiveMaximum": {"type": "integer", "exclusiveMaximum": True},
}


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return byte_grammars()


def _is_admitted(grammars: Grammars, schema: dict[str, Any], value: Any) -> bool:
    matcher = grammars.compile(Grammar("json_schema", json.dumps(schema)))
    text = json.dumps(value, separators=(",", ":"))
    try:
        matcher.advance([*byte_tokenizer().encode(text).ids, EOS])
    except GrammarProblem:
        return False
    return True


@pytest.mark.parametrize("keyword", HELD)
def test_a_keyword_holds(grammars: Grammars, keyword: str) -> None:
    schema, admitted, excluded = HELD[keyword]
    assert _is_admitted(grammars, schema, admitted)
    assert not _is_admitted(grammars, schema, excluded)


@pytest.mark.parametrize("keyword", REFUSED)
@pytest.mark.parametrize("place", ["whole", "property", "list", "definition"])
def test_a_keyword_that_would_not_hold_is_refused_by_name(grammars: Grammars, keyword: str, place: str) -> None:
    schema = {
        "whole": REFUSED[keyword],
        "property": {"type": "object", "properties": {"p": REFUSED[keyword]}, "required": ["p"]},
        "list": {"type": "array", "items": {"anyOf": [{"type": "boolean"}, REFUSED[keyword]]}},
        "definition": {"$ref": "#/$defs/d", "$defs": {"d": {"additionalProperties": REFUSED[keyword]}}},
    }[place]
    with pytest.raises(GrammarProblem) as problem:
        grammars.compile(Grammar("json_schema", json.dumps(schema)))
    assert keyword.removeprefix("min") in str(problem.value)


def test_names_and_values_are_no_keywords(grammars: Grammars) -> None:
    words = {name: {"const": True} for name in ("disallow", "divisibleBy", "extends", "not", "nullable")}
    value = dict.fromkeys(words, True)
    assert _is_admitted(grammars, {"type": "object", "properties": words, "required": sorted(words)}, value)
    assert _is_admitted(grammars, {"enum": [value], "default": {"extends": 1}, "examples": [{"nullable": 1}]}, value)
    assert _is_admitted(grammars, {"type": "string", "nullable": False}, "a")


@pytest.mark.parametrize("value", [None, True, 5, "a", [], [[]], {"a": 5}], ids=json.dumps)
@pytest.mark.parametrize("keyword", ["properties", "items", "anyOf", "$defs", "additionalProperties", "$ref"])
def test_what_is_no_schema_is_a_problem_or_nothing(grammars: Grammars, keyword: str, value: Any) -> None:
    """Whatever the library makes of it, nothing else is ever raised."""
    with contextlib.suppress(GrammarProblem):
        grammars.compile(Grammar("json_schema", json.dumps({keyword: value})))
