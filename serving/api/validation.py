"""From a raw body to a checked one: JSON read strictly, and every complaint in our own words."""

from __future__ import annotations

import typing
from collections.abc import Iterable
from typing import Any

import msgspec
import pydantic
from django.http import HttpRequest
from ninja.parser import Parser

from serving.api.errors import InvalidJson, MissingField, UnsupportedMediaType
from serving.contracts.errors import DomainError, InvalidValue, UnknownField


class StrictParser(Parser):
    """Owns nothing. Reads JSON as its standard says: no NaN, no infinity, no number beyond a double, no half pairs."""

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        """The body's value; raises `UnsupportedMediaType` and `InvalidJson`."""
        if request.content_type not in ("", "application/json"):
            raise UnsupportedMediaType("the body must be JSON: Content-Type: application/json")
        try:
            body = msgspec.json.decode(request.body)
        except (ValueError, RecursionError) as error:
            reason = str(error) if isinstance(error, msgspec.DecodeError) else "it cannot be read"
            raise InvalidJson(f"the body is not valid JSON: {reason}") from None
        if not isinstance(body, dict):
            raise InvalidJson("the body must be a JSON object")
        return body


def domain_error_of(error: pydantic.ValidationError, wrapper: type[pydantic.BaseModel]) -> DomainError:
    """The complaint to tell: the first of those that point deepest into the body.

    `wrapper` is the model whose single field is the body. A union complains once for each of its kinds; the kind that
    was meant is the one that was followed furthest.
    """
    details = error.errors(include_url=False, include_context=False)
    (body,) = wrapper.model_fields.values()
    model = _model_in(body.annotation)
    assert model is not None, "a body is a model"
    chosen = max(details, key=lambda detail: len(_path(detail["loc"][1:], model)[0]))
    path, indices, bounds = _path(chosen["loc"][1:], model)
    name = _spell(path)
    if chosen["type"] == "extra_forbidden":
        unknown = _spell([*path, *indices, chosen["loc"][-1]])[:200]
        return UnknownField(f"there is no field {unknown!r}", param=unknown)
    if not path:
        missing = chosen["type"] == "missing"
        return MissingField("a JSON body is needed") if missing else InvalidJson("the body must be a JSON object")
    if chosen["type"] == "missing":
        return MissingField(f"{name} is required: {bounds}", param=name)
    return InvalidValue(name, chosen["input"], bounds)


def _path(loc: Iterable[int | str], model: type[pydantic.BaseModel]) -> tuple[list[int | str], list[int | str], str]:
    """Names and indices that lead to the fault, as far as fields are declared; the indices after that; and in words
    what the last of those fields admits. A union's kinds stand in `loc` like names, and count for nothing.
    """
    path: list[int | str] = []
    indices: list[int | str] = []
    bounds = ""
    current: type[pydantic.BaseModel] | None = model
    for part in loc:
        if isinstance(part, int):
            indices.append(part)
            continue
        if current is None:
            continue
        field = current.model_fields.get(part)
        if field is None:
            continue
        path += [*indices, part]
        indices = []
        extra = field.json_schema_extra
        bounds = str(extra["x-bounds"]) if isinstance(extra, dict) else "valid"
        current = _model_in(field.annotation)
    return path, indices, bounds


def _model_in(annotation: Any) -> type[pydantic.BaseModel] | None:
    """The model that an annotation is, or is a list, union or option of."""
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    return next((found for arg in typing.get_args(annotation) if (found := _model_in(arg)) is not None), None)


def _spell(path: Iterable[int | str]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")
