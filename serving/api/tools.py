"""Tools that a request offers: what may be asked, and what template and grammar are told of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from serving.api.structured import check_schema, grammar_of_schema
from serving.api.tool_schemas import NamedToolChoice
from serving.contracts.errors import InvalidValue

if TYPE_CHECKING:
    from serving.api.context import Template
    from serving.api.schemas import ChatCompletionRequest
    from serving.api.tool_schemas import Tool
    from serving.contracts.sampling import Grammar
    from serving.gateway.text.tool_calls import ToolCallFormat

MAX_TOOLS_BYTES = 65_536
"""All tools of a request in JSON."""
_VALUES = frozenset({"const", "default", "enum", "examples"})
"""Keywords of JSON Schema that hold values and no schemas."""
_SCHEMAS_BY_NAME = frozenset({"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"})
"""Those under which any name may stand."""


class NoTools(InvalidValue):
    """The model's chat template tells it nothing of tools, or has it call them in a way that nobody reads here."""

    def __init__(self, model: str) -> None:
        super().__init__("tools", None, "left out")
        self.message = f"the model {model!r} takes no tools: its chat template knows none, or none that are read here"
        self.args = (self.message,)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """What the answers of a request may call: `shown` as the template sees it, and `names`, by which calls in
    `call_format` are known. With `only_first`, no call after an answer's first one is told. A call that `grammar`
    forces is the whole answer; `is_named` where the client has named its tool."""

    shown: list[dict[str, Any]]
    names: frozenset[str]
    call_format: ToolCallFormat
    ids_are_short: bool
    only_first: bool
    grammar: Grammar | None = None
    is_named: bool = False


def tool_use_of(request: ChatCompletionRequest, *, template: Template) -> ToolUse | None:
    """The tools that may be called; None where there are none, or where `tool_choice` says so.

    Raises `InvalidValue` for tools that the model cannot be told of or that are too large together, for choices that
    cannot be kept, and for a form of the answer beside tools; `UnusableGrammar` for a forced call that has none.
    """
    choice = request.tool_choice
    is_forced = choice not in (None, "none", "auto")
    if not request.tools:
        if is_forced:
            raise InvalidValue("tool_choice", _spell(choice), "none or auto where there are no tools")
        return None
    shown = plain_tools(request.tools, model=request.model, template=template)
    callable_tools = _chosen(request.tools, choice)
    if choice == "none":
        return None
    _check_strict(request.tools, is_forced=is_forced)
    _check_beside_tools(request)
    call_format = template.tool_call_format
    assert call_format is not None, "tools for a template that knows none were refused"
    return ToolUse(
        shown=shown,
        names=frozenset(tool.function.name for tool in callable_tools),
        # A forced call is bare JSON, whatever the model writes when it is free.
        call_format="llama" if is_forced else call_format,
        ids_are_short=call_format == "mistral",
        only_first=request.parallel_tool_calls is False,
        grammar=_grammar_of_calls(callable_tools) if is_forced else None,
        is_named=isinstance(choice, NamedToolChoice),
    )


def plain_tools(tools: Sequence[Tool], *, model: str, template: Template) -> list[dict[str, Any]]:
    """The tools as chat templates know them. Raises `InvalidValue`."""
    if template.tool_call_format is None:
        raise NoTools(model)
    shown = [tool.model_dump(exclude_none=True) for tool in tools]
    num_bytes = len(msgspec.json.encode(shown))
    if num_bytes > MAX_TOOLS_BYTES:
        raise InvalidValue("tools", f"{num_bytes} bytes", f"of at most {MAX_TOOLS_BYTES} bytes in JSON")
    return shown


def _chosen(tools: Sequence[Tool], choice: Any) -> list[Tool]:
    if not isinstance(choice, NamedToolChoice):
        return list(tools)
    chosen = [tool for tool in tools if tool.function.name == choice.function.name]
    if not chosen:
        raise InvalidValue("tool_choice.function.name", choice.function.name, "the name of one of the tools")
    return chosen


def _check_strict(tools: Sequence[Tool], *, is_forced: bool) -> None:
    for index, tool in enumerate(tools):
        if tool.function.strict and not is_forced:
            bounds = "false unless tool_choice forces a call: only then arguments are kept to their schema"
            raise InvalidValue(f"tools[{index}].function.strict", tool.function.strict, bounds)


def _check_beside_tools(request: ChatCompletionRequest) -> None:
    """Calls could not be written within another form."""
    asked_format = request.response_format
    has_format = asked_format is not None and asked_format.get("type") != "text"
    for name in ("regex", "grammar", *(["response_format"] if has_format else [])):
        if getattr(request, name) is not None:
            raise InvalidValue("tools", _spell(request.tools), f"left out, or tool_choice none, beside {name}")


def _grammar_of_calls(tools: Sequence[Tool]) -> Grammar:
    if len(tools) == 1:
        return grammar_of_schema(_call_of(tools[0], at="#"), param="tools")
    calls = [_call_of(tool, at=f"#/anyOf/{index}") for index, tool in enumerate(tools)]
    return grammar_of_schema({"anyOf": calls}, param="tools")


def _call_of(tool: Tool, *, at: str) -> dict[str, Any]:
    """The schema of a tool's calls, which will stand at the pointer `at`."""
    parameters = tool.function.parameters or {}
    check_schema(parameters, param="tools")
    if parameters.get("type", "object") != "object":
        raise InvalidValue("tools", parameters["type"], "functions whose parameters are an object")
    return {
        "type": "object",
        "properties": {
            "name": {"const": tool.function.name},
            "parameters": {**_rebased(parameters, f"{at}/properties/parameters"), "type": "object"},
        },
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _rebased(value: Any, base: str) -> Any:
    """A schema whose references to its own root point to where that root will be. What is a value stays as it is."""
    if isinstance(value, list):
        return [_rebased(item, base) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _rebased_keyword(key, inner, base) for key, inner in value.items()}


def _rebased_keyword(key: str, value: Any, base: str) -> Any:
    if key == "$ref" and isinstance(value, str) and value.startswith("#"):
        return base + value[1:]
    if key in _SCHEMAS_BY_NAME and isinstance(value, dict):
        return {name: _rebased(schema, base) for name, schema in value.items()}
    return value if key in _VALUES else _rebased(value, base)


def _spell(value: Any) -> str:
    return value if isinstance(value, str) else "an object"
