"""Calls of tools within texts: told as they come, the same however a text is cut, and never made up."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.gateway.text.tool_calls import (
    CallArguments,
    CallStart,
    Piece,
    Text,
    ToolCallFormat,
    ToolCallParser,
    join_pieces,
)

NAMES = ("look_up", "add")
FORMATS: tuple[ToolCallFormat, ...] = ("hermes", "llama", "mistral")


def parse(format_: ToolCallFormat, *parts: str) -> list[Piece]:
    parser = ToolCallParser(format_, NAMES)
    told = [piece for part in parts for piece in parser.push(part)]
    return join_pieces([*told, *parser.finish()])


def call(index: int, name: str, arguments: str) -> list[Piece]:
    return [CallStart(index, name), CallArguments(index, arguments)]


def tagged(inner: str) -> str:
    return f"<tool_call>\n{inner}\n</tool_call>"


LOOK = '{"name": "look_up", "arguments": {"what": "a }{ \\" b", "deep": {"x": [1, {}]}}}'
LOOK_ARGUMENTS = '{"what": "a }{ \\" b", "deep": {"x": [1, {}]}}'


@pytest.mark.parametrize(
    ("format_", "text", "expected"),
    [
        ("hermes", tagged(LOOK), call(0, "look_up", LOOK_ARGUMENTS)),
        ("hermes", f"Let me see.\n\n{tagged(LOOK)}\n", [Text("Let me see."), *call(0, "look_up", LOOK_ARGUMENTS)]),
        (
            "hermes",
            tagged(LOOK) + "\n" + tagged('{"name": "add", "arguments": {}}') + " done",
            [*call(0, "look_up", LOOK_ARGUMENTS), *call(1, "add", "{}"), Text(" done")],
        ),
        ("hermes", tagged('{"arguments": {"a": 1}, "name": "add"}'), call(0, "add", '{"a": 1}')),
        ("hermes", tagged('{"name": "add"}'), call(0, "add", "{}")),
        ("hermes", "<<tool_call>" + LOOK + "</tool_call>", [Text("<"), *call(0, "look_up", LOOK_ARGUMENTS)]),
        ("llama", LOOK.replace("arguments", "parameters"), call(0, "look_up", LOOK_ARGUMENTS)),
        ("llama", '\n{"type": "function", "name": "add", "parameters": {"a": 2}}', call(0, "add", '{"a": 2}')),
        (
            "llama",
            '{"name": "add", "parameters": {}}; {"name": "add", "parameters": {"b": 1}}',
            [*call(0, "add", "{}"), *call(1, "add", '{"b": 1}')],
        ),
        ("mistral", f"[TOOL_CALLS][{LOOK}]", call(0, "look_up", LOOK_ARGUMENTS)),
        (
            "mistral",
            f"[TOOL_CALLS] [{LOOK}, {LOOK}]",
            [*call(0, "look_up", LOOK_ARGUMENTS), *call(1, "look_up", LOOK_ARGUMENTS)],
        ),
        ("mistral", f" [{LOOK}]", call(0, "look_up", LOOK_ARGUMENTS)),
        ("mistral", f"Well: [TOOL_CALLS][{LOOK}]", [Text("Well:"), *call(0, "look_up", LOOK_ARGUMENTS)]),
    ],
)
def test_calls_of_each_format_are_told_with_what_stands_around_them(
    format_: ToolCallFormat, text: str, expected: list[Piece]
) -> None:
    assert parse(format_, text) == expected
    assert parse(format_, *text) == expected


@pytest.mark.parametrize(
    ("format_", "text"),
    [
        *[(format_, text) for format_ in FORMATS for text in ("", "  ", "plain", "a < b [1] {2}\n", "\n{}", "[]", "<")],
        ("hermes", tagged('{"name": "unknown", "arguments": {}}')),
        ("hermes", tagged('{"arguments": {"a": 1}, "name": "unknown"}')),
        ("hermes", tagged("look_up()")),
        ("hermes", tagged('{"name": 5, "arguments": {}}')),
        ("hermes", tagged('{"name": "add", "arguments": [1]}')),
        ("hermes", tagged('{"name": "add", "arguments": "Paris"}')),
        ("hermes", LOOK),
        ("hermes", "the tag <tool_call> begins a call"),
        ("hermes", "<tool_call>" + " " * 600 + LOOK),
        ("hermes", '<tool_call>{"arguments": {"' + "x" * 70_000 + '": 1}, "name": "add"}'),
        ("hermes", '<tool_call>{"name": "ad'),
        ("llama", "See: " + LOOK),
        ("llama", '{"name": "Bob", "parameters": {"age": 5}}'),
        ("llama", '{"answer": "add"}'),
        ("llama", '{"name": "add", "age": "5"}'),
        ("mistral", f"See: [{LOOK}]"),
        ("mistral", '[{"name": "Bob"}]'),
        ("mistral", "[TOOL_CALLS] none"),
    ],
)
def test_what_only_looks_like_a_call_stays_text(format_: ToolCallFormat, text: str) -> None:
    assert parse(format_, text) == ([Text(text)] if text else [])
    assert parse(format_, *text) == parse(format_, text)


@pytest.mark.parametrize("length", range(len('<tool_call>{"name": "add", "arguments": {'), len(tagged(LOOK)) + 40))
def test_call_that_breaks_off_is_told_as_far_as_it_goes(length: int) -> None:
    text = ('<tool_call>{"name": "add", "arguments": {"what": "<tool_call>"}}\n</tool_call>')[:length]
    start, *rest = parse("hermes", *text)
    assert start == CallStart(0, "add")
    told = "".join(piece.text for piece in rest if isinstance(piece, CallArguments))
    assert '{"what": "<tool_call>"}'.startswith(told)
    assert not [piece for piece in rest if isinstance(piece, Text)]


def test_arguments_are_told_before_the_call_ends_and_text_before_the_next_word() -> None:
    parser = ToolCallParser("hermes", NAMES)
    assert parser.push("Let") == [Text("Let")]
    assert parser.push(" me\n") == [Text(" me")]
    assert parser.push("<tool") == []
    assert parser.push('_call>{"name": "add", "arguments": ') == []
    assert parser.push('{"a"') == [CallStart(0, "add"), CallArguments(0, '{"a"')]
    assert parser.push(": 1") == [CallArguments(0, ": 1")]
    assert parser.push("}}") == [CallArguments(0, "}")]
    assert parser.push("</tool_") == []
    assert parser.finish() == []
    assert parser.has_calls


FRAGMENTS = st.sampled_from(
    [
        *(
            "<",
            "<tool_call>",
            "</tool_call>",
            "[TOOL_CALLS]",
            "[",
            "]",
            "{",
            "}",
            ";",
            ",",
            " ",
            "\n",
            '"',
            "\\",
            "x",
            "é",
        ),
        *(
            '{"name": "add", ',
            '"arguments": {',
            '"parameters": {}',
            '"name": "look_up"',
            LOOK,
            tagged(LOOK),
            f"[{LOOK}]",
        ),
    ]
)


@given(format_=st.sampled_from(FORMATS), fragments=st.lists(FRAGMENTS, max_size=12), data=st.data())
def test_cuts_change_nothing(format_: ToolCallFormat, fragments: list[str], data: Any) -> None:
    text = "".join(fragments)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    whole = parse(format_, text)
    assert parse(format_, *parts) == whole == parse(format_, *text)
    if not any(isinstance(piece, CallStart) for piece in whole):
        assert "".join(piece.text for piece in whole if isinstance(piece, Text)) == text


@given(
    format_=st.sampled_from(FORMATS),
    arguments=st.dictionaries(
        st.text(),
        st.recursive(
            st.none() | st.text() | st.integers(),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
            max_leaves=6,
        ),
        max_size=4,
    ),
)
def test_every_object_of_arguments_comes_through_whole(format_: ToolCallFormat, arguments: dict[str, Any]) -> None:
    for ensure_ascii in (True, False):
        written = json.dumps(arguments, ensure_ascii=ensure_ascii)
        body = f'{{"name": "add", "arguments": {written}}}'
        text = {"hermes": tagged(body), "llama": body, "mistral": f"[TOOL_CALLS][{body}]"}[format_]
        assert parse(format_, text) == call(0, "add", written)
