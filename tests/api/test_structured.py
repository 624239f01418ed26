"""Structured output at the door: what is asked for reaches the engine, what is malformed is refused by name (C62)."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pydantic
import pytest

from serving.contracts.sampling import MAX_GRAMMAR_BYTES, Grammar
from serving.gateway.generation import ChoiceDelta
from tests.api.conftest import MODEL, RecordingObserver, ScriptedGateway, ScriptedServices
from tests.api.envelope import error_of

CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}]}
COMPLETION: dict[str, Any] = {"model": MODEL, "prompt": "Hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
LARK = 'start: "a" | "b" start'


def _schema_format(schema: Any = SCHEMA, **others: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, **others}}


def _grammar_of(gateway: ScriptedGateway) -> Grammar | None:
    grammars = {params.grammar for params in gateway.generations[-1].params}
    (grammar,) = grammars
    return grammar


@pytest.fixture(params=["/v1/chat/completions", "/v1/completions"])
def path(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def _post(client: httpx.AsyncClient, path: str, **fields: Any) -> httpx.Response:
    return await client.post(path, json={**(CHAT if "chat" in path else COMPLETION), **fields})


@pytest.mark.parametrize(
    ("fields", "grammar"),
    [
        ({}, None),
        ({"response_format": None, "regex": None, "grammar": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "text", "json_schema": None}}, None),
        ({"response_format": {"type": "json_object"}}, Grammar("json_object")),
        ({"response_format": _schema_format()}, Grammar("json_schema", json.dumps(SCHEMA, separators=(",", ":")))),
        ({"response_format": _schema_format({})}, Grammar("json_schema", "{}")),
        ({"response_format": _schema_format({"const": None})}, Grammar("json_schema", '{"const":null}')),
        ({"response_format": _schema_format({}, strict=True, description="d")}, Grammar("json_schema", "{}")),
        ({"response_format": _schema_format({}, strict=None, description=None)}, Grammar("json_schema", "{}")),
        ({"regex": "[ab]+"}, Grammar("regex", "[ab]+")),
        ({"grammar": LARK}, Grammar("lark", LARK)),
        ({"regex": "é\x00"}, Grammar("regex", "é\x00")),
        ({"response_format": {"type": "text"}, "regex": "a"}, Grammar("regex", "a")),
        ({"regex": "a", "ignore_eos": False, "n": 3}, Grammar("regex", "a")),
    ],
)
async def test_what_is_asked_for_reaches_every_choice(
    client: httpx.AsyncClient, gateway: ScriptedGateway, path: str, fields: dict[str, Any], grammar: Grammar | None
) -> None:
    response = await _post(client, path, **fields)
    assert response.status_code == 200, response.text
    assert _grammar_of(gateway) == grammar


async def test_properties_keep_the_order_in_which_they_are_given(
    client: httpx.AsyncClient, gateway: ScriptedGateway, path: str
) -> None:
    schema = {"type": "object", "properties": {name: {} for name in "zayb"}}
    await _post(client, path, response_format=_schema_format(schema))
    grammar = _grammar_of(gateway)
    assert grammar is not None
    assert list(json.loads(grammar.text)["properties"]) == list("zayb")


def _nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"anyOf": [schema]}
    return schema


@pytest.mark.parametrize(
    "value",
    [
        {"type": "json_schema", "schema": {}},
        {"type": "x"},
        [],
        {},
        "json_object",
        5,
        {"type": None},
        {"type": ["json_object"]},
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": None},
        {"type": "json_schema", "json_schema": []},
        {"type": "json_schema", "json_schema": {"name": "a"}},
        {"type": "json_schema", "json_schema": {"schema": {}}},
        {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}},
        {"type": "json_schema", "json_schema": {"name": "a\n", "schema": {}}},
        {"type": "json_schema", "json_schema": {"name": "", "schema": {}}},
        {"type": "json_schema", "json_schema": {"name": "a" * 65, "schema": {}}},
        _schema_format([]),
        _schema_format(True),
        _schema_format("{}"),
        _schema_format(strict="yes"),
        _schema_format(extra=1),
        {"type": "json_object", "schema": {}},
        {"type": "text", "json_schema": {"name": "a", "schema": {}}},
        _schema_format({"not": {}}),
        _schema_format({"type": "array", "uniqueItems": True}),
        _schema_format({"type": "x"}),
        _schema_format({"$ref": "#/$defs/none"}),
        _schema_format({"$ref": "http://127.0.0.1:9/schema"}),
        _schema_format({"x-guidance": {"lenient": True}}),
        _schema_format({"type": "string", "pattern": "("}),
        _schema_format({"type": "object", "properties": {"a": False}, "required": ["a"]}),
        _schema_format({"enum": []}),
        _schema_format({"properties": 5}),
        _schema_format(_nested(40)),
        _schema_format({"const": "x" * MAX_GRAMMAR_BYTES}),
    ],
    ids=lambda value: json.dumps(value)[:60],
)
async def test_c62_a_malformed_format_is_refused_by_name(
    client: httpx.AsyncClient, gateway: ScriptedGateway, services: ScriptedServices, path: str, value: Any
) -> None:
    error = error_of(await _post(client, path, response_format=value), status=400)
    assert error["param"] == "response_format"
    assert "response_format" in error["message"]
    assert gateway.generations == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("regex", ""),
        ("regex", 5),
        ("regex", ["a"]),
        ("regex", "("),
        ("regex", "(?=a)b"),
        ("regex", "[^\\s\\S]"),
        ("regex", "é" * (MAX_GRAMMAR_BYTES // 2 + 1)),
        ("regex", "(" * 30_000 + ")" * 30_000),
        ("grammar", ""),
        ("grammar", {}),
        ("grammar", "start: nothing"),
        ("grammar", "start: start"),
        ("grammar", "\x00"),
        ("grammar", 'start[temperature=0.1]: "a"'),
        ("grammar", "start: " + "(" * 30_000 + '"a"' + ")" * 30_000),
        ("grammar", "start: @other"),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_what_is_no_expression_or_grammar_is_refused_by_name(
    client: httpx.AsyncClient, gateway: ScriptedGateway, path: str, field: str, value: Any
) -> None:
    assert error_of(await _post(client, path, **{field: value}), status=400)["param"] == field
    assert gateway.generations == []


@pytest.mark.parametrize(
    "field", ["guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs"]
)
async def test_other_servers_names_are_no_fields(client: httpx.AsyncClient, path: str, field: str) -> None:
    error = error_of(await _post(client, path, **{field: "a"}), status=400)
    assert (error["param"], error["code"]) == (field, "unknown_field")


async def test_at_most_one_form_is_asked_for(client: httpx.AsyncClient, path: str) -> None:
    for fields in (
        {"regex": "a", "grammar": LARK},
        {"regex": "a", "response_format": {"type": "json_object"}},
        {"grammar": LARK, "response_format": _schema_format()},
    ):
        error = error_of(await _post(client, path, **fields), status=400)
        assert error["param"] in fields
        assert all(name in error["message"] for name in fields)


async def test_a_form_ends_the_text_and_eos_is_not_ignored(client: httpx.AsyncClient, path: str) -> None:
    error = error_of(await _post(client, path, regex="a", ignore_eos=True), status=400)
    assert error["param"] == "ignore_eos"


async def test_a_refused_grammar_counts_as_refused_and_holds_nothing(
    client: httpx.AsyncClient, services: ScriptedServices, path: str
) -> None:
    error_of(await _post(client, path, response_format=_schema_format({"not": {}})), status=400)
    observer: RecordingObserver = services.observer
    assert (observer.num_submitted, observer.outcomes) == (1, ["refused:invalid_value"])
    assert services.gateway.permits == []
    assert (await _post(client, path)).status_code == 200


class Answer(pydantic.BaseModel):
    """What the official client turns into a schema."""

    name: str
    ages: list[int]


async def test_the_official_client_parses_answers_of_a_model_of_its_own(
    sdk: openai.AsyncOpenAI, gateway: ScriptedGateway
) -> None:
    text = '{"name": "Ada", "ages": [3, 5]}'
    gateway.script = lambda generation: [ChoiceDelta(0, text, 9, "stop")]
    answer = await sdk.chat.completions.parse(
        model=MODEL, messages=[{"role": "user", "content": "Hi"}], response_format=Answer
    )
    assert answer.choices[0].message.parsed == Answer(name="Ada", ages=[3, 5])
    grammar = _grammar_of(gateway)
    assert grammar is not None
    assert set(json.loads(grammar.text)["properties"]) == {"name", "ages"}
