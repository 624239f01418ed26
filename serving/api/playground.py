"""What the console's playground asks for: a body of the API's own, checked as the API checks it. Pure functions.

What the playground shows to be copied is what it sends, so that a parameter means the same here and there.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Literal

import pydantic

from serving.api.errors import UnsupportedField
from serving.api.schemas import ChatCompletionRequest, CompletionRequest, GenerationRequest
from serving.api.validation import domain_error_of
from serving.contracts.errors import InvalidValue

Endpoint = Literal["chat", "completion"]

_COMMON = frozenset(
    {
        "model",
        "pool",
        "max_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "stop",
        "seed",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logprobs",
        "stream",
        "stream_options",
        "timings",
    }
)
PLAYED_FIELDS: Mapping[Endpoint, frozenset[str]] = {
    "chat": _COMMON | {"messages", "top_logprobs"},
    "completion": _COMMON | {"prompt"},
}
"""Fields of the API's bodies that the playground plays; it is asked for one answer at a time, as it comes."""


def read_body(endpoint: Endpoint, given: Mapping[str, Any], *, model: str, pool: str) -> GenerationRequest:
    """The body, checked. Raises the `DomainError` that the API would answer with, `UnsupportedField` for a field that
    the playground does not play, and `InvalidValue` for what is for another pool or model, or for no stream."""
    kind = ChatCompletionRequest if endpoint == "chat" else CompletionRequest
    body = _validate(kind, given)
    for name in sorted(body.model_fields_set - PLAYED_FIELDS[endpoint]):
        raise UnsupportedField(f"the playground does not play {name}: ask the API itself", param=name)
    if body.model != model:
        raise InvalidValue("model", body.model, f"{model}, which the pool serves")
    if body.pool not in (None, pool):
        raise InvalidValue("pool", body.pool, f"{pool}, which is asked, or left out")
    if body.stream is not True:
        raise InvalidValue("stream", body.stream, "true: the playground shows answers as they come")
    if isinstance(body, CompletionRequest) and not isinstance(body.prompt, str):
        raise InvalidValue("prompt", body.prompt, "one text")
    return body


def _validate(kind: type[GenerationRequest], given: Mapping[str, Any]) -> GenerationRequest:
    wrapper = _wrapper_of(kind)
    try:
        wrapped: Any = wrapper.model_validate({"body": dict(given)})
    except pydantic.ValidationError as error:
        raise domain_error_of(error, wrapper) from None
    body: GenerationRequest = wrapped.body
    return body


@functools.cache
def _wrapper_of(kind: type[GenerationRequest]) -> type[pydantic.BaseModel]:
    """A model whose one field is the body, as complaints are told about."""
    return pydantic.create_model(f"Played{kind.__name__}", body=(kind, ...))
