"""Answers of a given form: which grammar a request asks for, and the check that it can be followed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from serving.api.prompts import Prompt
from serving.api.schemas import GenerationRequest
from serving.contracts.errors import InvalidValue, UnusableGrammar
from serving.contracts.sampling import MAX_GRAMMAR_BYTES, Grammar, GrammarKind

if TYPE_CHECKING:
    from serving.gateway.text.tokenizer import TextModel

MAX_SCHEMA_DEPTH = 32
_GUIDANCE = "x-guidance"


class _NamedSchema(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_-]{1,64}\Z")]
    schema: dict[str, Any]
    description: str = ""
    strict: bool = True
    """Without effect: an answer always follows the schema."""


class _TextFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="text", tag_field="type"):
    pass


class _ObjectFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="json_object", tag_field="type"):
    pass


class _SchemaFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="json_schema", tag_field="type"):
    json_schema: _NamedSchema


def grammar_of(request: GenerationRequest) -> Grammar | None:
    """The grammar that the answer must follow, None where it may be any text.

    Raises `InvalidValue` and `UnusableGrammar` for more than one, for one that is malformed or too large, and for
    `ignore_eos` beside one. Whether it can be compiled is found out by `checked`.
    """
    asked = {name: value for name in ("regex", "grammar") if (value := getattr(request, name)) is not None}
    grammars = {name: _written(name, text) for name, text in asked.items()}
    if request.response_format is not None and (grammar := _grammar_of_format(request.response_format)) is not None:
        grammars["response_format"] = grammar
    if len(grammars) > 1:
        first, second = list(grammars)[:2]
        raise InvalidValue(first, asked[first], f"left out where {second} says what the answer must be")
    if grammars and request.ignore_eos:
        (name,) = grammars
        raise InvalidValue("ignore_eos", request.ignore_eos, f"left out where {name} says where the answer ends")
    return next(iter(grammars.values()), None)


def checked(
    prompts: Sequence[Prompt], grammar: Grammar | None, *, text_model: TextModel, param: str | None = None
) -> list[Prompt]:
    """`prompts`, the first of which is tokenised once `grammar` is found to be one that the model's answers can follow.

    So a request is counted and bounded like any other while its grammar is compiled. Tokenising raises
    `UnusableGrammar`, for `param` or else for the field that such a grammar comes from.
    """
    if grammar is None:
        return list(prompts)
    first, *others = prompts
    check = functools.partial(_check, first, grammar, text_model=text_model, param=param or _param_of(grammar.kind))
    return [dataclasses.replace(first, tokenise=check), *others]


async def _check(prompt: Prompt, grammar: Grammar, *, text_model: TextModel, param: str) -> list[int]:
    await text_model.grammars.check_async(grammar, param=param)
    return await prompt.tokenise()


def _param_of(kind: GrammarKind) -> str:
    match kind:
        case "json_schema" | "json_object":
            return "response_format"
        case "regex":
            return "regex"
        case "lark":
            return "grammar"


def _written(name: str, text: str) -> Grammar:
    if len(text.encode(errors="surrogatepass")) > MAX_GRAMMAR_BYTES:
        raise InvalidValue(name, text, f"at most {MAX_GRAMMAR_BYTES} bytes in UTF-8")
    return Grammar("regex" if name == "regex" else "lark", text)


def _grammar_of_format(value: dict[str, Any]) -> Grammar | None:
    try:
        found = msgspec.convert(_without_nulls(value), _TextFormat | _ObjectFormat | _SchemaFormat)
    except msgspec.ValidationError as error:
        raise _refusal(str(error)) from None
    if isinstance(found, _TextFormat):
        return None
    if isinstance(found, _ObjectFormat):
        return Grammar("json_object")
    return grammar_of_schema(found.json_schema.schema)


def grammar_of_schema(schema: dict[str, Any], *, param: str = "response_format") -> Grammar:
    """The grammar of a JSON schema; raises `UnusableGrammar`, for `param`, for one that is too large or too deep."""
    check_schema(schema, param=param)
    text = msgspec.json.encode(schema)
    if len(text) > MAX_GRAMMAR_BYTES:
        raise _refusal(f"the schema has {len(text)} bytes, more than {MAX_GRAMMAR_BYTES}", param=param)
    return Grammar("json_schema", text.decode())


def check_schema(schema: dict[str, Any], *, param: str) -> None:
    """Raise `UnusableGrammar`, for `param`, for a schema that is too deep or speaks to the library itself."""
    if _is_deeper(schema, MAX_SCHEMA_DEPTH):
        raise _refusal(f"the schema is nested deeper than {MAX_SCHEMA_DEPTH} levels", param=param)
    if _GUIDANCE in schema:
        raise _refusal(f"the schema's keyword {_GUIDANCE} is not supported", param=param)


def _without_nulls(value: dict[str, Any]) -> dict[str, Any]:
    """As everywhere, null counts as absent; but a schema is the client's own, and null may be a value in it."""
    kept = {name: inner for name, inner in value.items() if inner is not None}
    if isinstance(named := kept.get("json_schema"), dict):
        kept["json_schema"] = {name: inner for name, inner in named.items() if inner is not None}
    return kept


def _is_deeper(value: Any, depth: int) -> bool:
    """Whether objects and lists lie in one another more than `depth` times."""
    level: list[Any] = [value]
    for _ in range(depth + 1):
        inner: list[Any] = []
        for item in level:
            if isinstance(item, (dict, list)):
                inner += item.values() if isinstance(item, dict) else item
        level = inner
        if not level:
            return False
    return any(isinstance(item, (dict, list)) for item in level)


def _refusal(reason: str, *, param: str = "response_format") -> UnusableGrammar:
    return UnusableGrammar(f"{param} cannot be used: {reason}", param=param)
