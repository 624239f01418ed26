"""Grammars in the tokens of every kind of model: what they admit is what the client reads, and what they refuse."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema_rs
import numpy as np
import pytest

from serving.contracts.errors import UnusableGrammar
from serving.contracts.sampling import Grammar
from serving.gateway.text.detokenizer import Detokenizer
from serving.gateway.text.tokenizer import TextModel
from serving.grammars import GrammarProblem, Grammars
from tests.gateway.text.conftest import VOCABULARY_SIZE

_END = 1
_USABLE = ("byte-level", "byte-fallback")
_SCHEMAS: tuple[dict[str, Any], ...] = (
    {"type": "object", "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "integer"}}},
    {
        "type": "object",
        "properties": {"kind": {"enum": ["é", "b c", 3, None]}, "at": {"$ref": "#/$defs/at"}},
        "required": ["kind", "at"],
        "additionalProperties": False,
        "$defs": {
            "at": {
                "type": "array",
                "items": {"type": "number", "minimum": -9, "maximum": 9},
                "minItems": 1,
                "maxItems": 3,
            }
        },
    },
    {"anyOf": [{"type": "string", "pattern": "^[a-c]{2,5}$"}, {"type": "boolean"}, {"const": {"a": [1, {}]}}]},
    {"type": "string", "format": "date"},
)
_REGEXES = (r"\d{3}-[a-z]{2}", r"(yes|no|může být)!", r"[\x00-\x7f]{5}", r"a*b?", r"(á|字|😀){3}")
_LARK = 'start: item ("," item)*\nitem: NUMBER | "[" start "]"\nNUMBER: /[0-9]{1,3}/'


@pytest.fixture
def text_model(tokenizer_folders: dict[str, Path]) -> Iterator[Callable[[str], TextModel]]:
    models: list[TextModel] = []

    def load(kind: str) -> TextModel:
        models.append(TextModel.load(tokenizer_folders[kind]))
        return models[-1]

    yield load
    for model in models:
        model.close()


def _grammars(folder: Path) -> Grammars:
    return Grammars((folder / "tokenizer.json").read_text(), vocab_size=VOCABULARY_SIZE, eos_token_ids={_END})


def _admitted(matcher: Any) -> list[int]:
    row = np.full(-(-VOCABULARY_SIZE // 32), -1, dtype=np.int32)
    matcher.fill(row)
    return np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little")).tolist()


def _write(grammars: Grammars, grammar: Grammar, *, seed: int, most: int = 300) -> list[int] | None:
    """Tokens chosen blindly among those admitted, without the last one; None where the text got too long."""
    chance = random.Random(seed)
    matcher = grammars.compile(grammar)
    written: list[int] = []
    while len(written) < most:
        admitted = _admitted(matcher)
        # The end is rarely offered, and is to be reached.
        token_id = _END if _END in admitted and chance.random() < 0.3 else chance.choice(admitted)
        if token_id == _END:
            return written
        written.append(token_id)
        matcher.advance([token_id])
    return None


def _read(model: TextModel, token_ids: list[int]) -> str:
    detokenizer = Detokenizer(model)
    return detokenizer.push(token_ids) + detokenizer.finish()


def _texts(model: TextModel, folder: Path, grammar: Grammar, count: int = 25) -> list[str]:
    grammars = _grammars(folder)
    written = [_write(grammars, grammar, seed=seed) for seed in range(count)]
    texts = [_read(model, token_ids) for token_ids in written if token_ids is not None]
    assert len(texts) > count // 4
    return texts


@pytest.mark.parametrize("kind", _USABLE)
@pytest.mark.parametrize("schema", _SCHEMAS, ids=str)
def test_whatever_is_written_is_valid_under_the_schema(
    kind: str, schema: dict[str, Any], text_model: Callable[[str], TextModel], tokenizer_folders: dict[str, Path]
) -> None:
    validator = jsonschema_rs.validator_for(schema, validate_formats=True)
    for text in _texts(text_model(kind), tokenizer_folders[kind], Grammar("json_schema", json.dumps(schema))):
        assert validator.is_valid(json.loads(text)), text


@pytest.mark.parametrize("kind", _USABLE)
@pytest.mark.parametrize("pattern", _REGEXES)
def test_whatever_is_written_matches_the_whole_expression(
    kind: str, pattern: str, text_model: Callable[[str], TextModel], tokenizer_folders: dict[str, Path]
) -> None:
    for text in _texts(text_model(kind), tokenizer_folders[kind], Grammar("regex", pattern)):
        assert re.fullmatch(pattern, text), text


@pytest.mark.parametrize("kind", _USABLE)
def test_lark_grammars_and_any_object(
    kind: str, text_model: Callable[[str], TextModel], tokenizer_folders: dict[str, Path]
) -> None:
    model, folder = text_model(kind), tokenizer_folders[kind]
    for text in _texts(model, folder, Grammar("lark", _LARK)):
        assert json.loads(re.sub(r"\b0+(?=\d)", "", f"[{text}]"))
    for text in _texts(model, folder, Grammar("json_object"), count=60):
        assert isinstance(json.loads(text), dict)


@pytest.mark.parametrize("kind", _USABLE)
def test_a_matcher_made_anew_from_the_tokens_admits_the_same(kind: str, tokenizer_folders: dict[str, Path]) -> None:
    grammars = _grammars(tokenizer_folders[kind])
    grammar = Grammar("json_schema", json.dumps(_SCHEMAS[1]))
    going_on, written = grammars.compile(grammar), []
    chance = random.Random(5)
    for _ in range(40):
        anew = grammars.compile(grammar)
        anew.advance(written)
        admitted = _admitted(going_on)
        assert _admitted(anew) == admitted
        token_id = chance.choice(admitted)
        if token_id == _END:
            break
        written.append(token_id)
        going_on.advance([token_id])


@pytest.mark.parametrize("kind", _USABLE)
def test_a_complete_text_admits_nothing_but_its_end(kind: str, tokenizer_folders: dict[str, Path]) -> None:
    matcher = _grammars(tokenizer_folders[kind]).compile(Grammar("regex", "a"))
    assert _END not in _admitted(matcher)
    matcher.advance([_admitted(matcher)[0]])
    assert _admitted(matcher) == [_END]


def test_what_a_grammar_does_not_admit_is_its_problem(tokenizer_folders: dict[str, Path]) -> None:
    matcher = _grammars(tokenizer_folders["byte-level"]).compile(Grammar("regex", "a"))
    not_admitted = min(set(range(2, 100)) - set(_admitted(matcher)))
    with pytest.raises(GrammarProblem):
        matcher.advance([not_admitted])


_UNUSABLE = (
    Grammar("json_schema", '{"not": {"type": "string"}}'),
    Grammar("json_schema", '{"type": "array", "uniqueItems": true}'),
    Grammar("json_schema", '{"type": "x"}'),
    Grammar("json_schema", '{"$ref": "#/nowhere"}'),
    Grammar("json_schema", '{"$ref": "#"}'),
    Grammar("json_schema", '{"$ref": "file:///etc/hostname"}'),
    Grammar("json_schema", '{"type": "string", "format": "unheard-of"}'),
    Grammar("json_schema", '{"type": "object", "properties": {"a": false}, "required": ["a"]}'),
    Grammar("json_schema", '{"type": "object", "x-guidance": {"lenient": true}, "not": {}}'),
    Grammar("json_schema", "no JSON"),
    Grammar("json_schema", '{"properties": {"a": {"items": {"anyOf": [{"type": "string", "nullable": true}]}}}}'),
    Grammar("json_schema", '{"$defs": {"a": {"divisibleBy": 3}}, "additionalProperties": {"$ref": "#/$defs/a"}}'),
    Grammar("json_schema", '{"prefixItems": [{"disallow": "string"}]}'),
    Grammar("lark", 'start[capture="x"]: "a"'),
    Grammar("lark", '%llguidance {"no_forcing": false}\nstart: "a"'),
    Grammar("regex", "("),
    Grammar("regex", "(?=a)b"),
    Grammar("regex", r"(a)\1"),
    Grammar("regex", r"[^\s\S]"),
    Grammar("lark", "start: nothing"),
    Grammar("lark", "start: start"),
    Grammar("lark", "begin: 'a'"),
    Grammar("json_schema", json.dumps({"type": "object", "properties": {f"p{index}": {} for index in range(900)}})),
    Grammar("lark", 'start[temperature=0.5]: "a"'),
    Grammar("lark", "start: " + "(" * 20_000 + '"a"' + ")" * 20_000),
)


@pytest.mark.parametrize("grammar", _UNUSABLE, ids=lambda grammar: grammar.text[:60])
async def test_what_cannot_be_followed_is_refused_with_a_reason(
    grammar: Grammar, text_model: Callable[[str], TextModel]
) -> None:
    with pytest.raises(UnusableGrammar) as refusal:
        await text_model("byte-level").grammars.check_async(grammar, param="here")
    assert refusal.value.param == "here"
    assert refusal.value.code == "invalid_value"
    assert "here cannot be used: " in refusal.value.message
    assert len(refusal.value.message) < 500


async def test_unsupported_keywords_are_named(text_model: Callable[[str], TextModel]) -> None:
    schema = '{"type": "array", "uniqueItems": true, "contains": {}}'
    with pytest.raises(UnusableGrammar, match="uniqueItems") as refusal:
        await text_model("byte-level").grammars.check_async(Grammar("json_schema", schema), param="response_format")
    assert "contains" in refusal.value.message


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"nullable": {"type": "null"}, "extends": {"const": "extends"}}},
        {"enum": [{"disallow": 1}], "title": "extends", "examples": [{"nullable": True}]},
        {"type": "object", "properties": {f"p{index}": {"type": "string"} for index in range(250)}},
    ],
    ids=["properties", "values", "many optional properties"],
)
async def test_what_is_supported_is_let_in(schema: dict[str, Any], text_model: Callable[[str], TextModel]) -> None:
    await text_model("byte-level").grammars.check_async(Grammar("json_schema", json.dumps(schema)), param="here")


@pytest.mark.parametrize("kind", ["word-piece", "metaspace"])
async def test_a_model_whose_tokenizer_serves_for_none_says_so(
    kind: str, text_model: Callable[[str], TextModel]
) -> None:
    with pytest.raises(UnusableGrammar, match="not possible with this model") as refusal:
        await text_model(kind).grammars.check_async(Grammar("json_object"), param="response_format")
    assert refusal.value.param == "response_format"


async def test_a_model_without_an_end_token_follows_no_grammar(
    tmp_path: Path, tokenizer_folders: dict[str, Path]
) -> None:
    folder = tmp_path / "endless"
    folder.mkdir()
    (folder / "tokenizer.json").write_text((tokenizer_folders["byte-level"] / "tokenizer.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({"vocab_size": VOCABULARY_SIZE, "max_position_embeddings": 64, "eos_token_id": None})
    )
    model = TextModel.load(folder)
    with pytest.raises(UnusableGrammar, match="no token that ends a text"):
        await model.grammars.check_async(Grammar("json_object"), param="response_format")
    model.close()
