"""`POST /v1/embeddings`: the mean of a decoder's hidden states, and marked as such."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec
from django.http import HttpRequest, HttpResponse

from serving.api.beginning import POOL_HEADER, begin
from serving.api.bodies import encode
from serving.api.entering import Output
from serving.api.finding import route_of_now
from serving.api.prompts import plain_prompt
from serving.api.text_schemas import EmbeddingsRequest
from serving.contracts.errors import ContextLengthExceeded, EngineFailure, InvalidValue
from serving.contracts.sampling import SamplingParams

if TYPE_CHECKING:
    from serving.api.context import Stream
    from serving.api.routing import Route

_NUMBER_BYTES = 4


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """A vector of length 1: its numbers, or their fp32 in little-endian order and base64."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """Tokens of all inputs."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs' embeddings in their order. `pooling` says what they are: means of hidden states."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    pooling: Literal["mean"] = "mean"
    usage: EmbeddingUsage


async def create_embeddings(request: HttpRequest, body: EmbeddingsRequest) -> HttpResponse:
    """Each input as a vector of length 1: the mean of the model's last hidden states, after its last norm, over all of
    the input's tokens. The models served here are made to write text: what they give is not what a model trained for
    embeddings would give."""
    route = await route_of_now(request, body.model, named=body.pool)
    _check_dimensions(body.dimensions, route)
    inputs = _inputs_of(body)
    started = await begin(
        request,
        route=route,
        model=body.model,
        named=body.pool,
        prompts=[plain_prompt(route, text, param="input") for text in inputs],
        num_choices=1,
        params_for=_params_for,
        stop=(),
        output=Output(0),
        endpoint="embedding",
    )
    vectors = await _collect(started.stream, num_inputs=len(inputs))
    usage = EmbeddingUsage(started.stream.usage.prompt_tokens, started.stream.usage.prompt_tokens)
    # A hundred long vectors take many milliseconds to write, in which all streams would stand still.
    content = await asyncio.to_thread(_shape, vectors, body, usage)
    response = HttpResponse(content, content_type="application/json")
    response.headers[POOL_HEADER] = started.pool
    return response


def _check_dimensions(wanted: int | None, route: Route) -> None:
    size = route.text_model.embedding_size
    if wanted is not None and wanted != size:
        as_they_are = "left out" if size is None else f"left out, or {size}"
        raise InvalidValue("dimensions", wanted, f"{as_they_are}: vectors are not shortened")


def _inputs_of(body: EmbeddingsRequest) -> list[str | list[int]]:
    """The inputs, each a text or token ids."""
    given = body.input
    if isinstance(given, str):
        return [given]
    ids = [part for part in given if isinstance(part, int)]
    return [ids] if ids else [part for part in given if not isinstance(part, int)]


def _params_for(num_prompt_tokens: int, *, max_context_tokens: int) -> SamplingParams:
    if num_prompt_tokens > max_context_tokens:
        raise ContextLengthExceeded(
            f"This model's maximum context length is {max_context_tokens} tokens. However, an input has "
            f"{num_prompt_tokens} tokens.",
            param="input",
        )
    return SamplingParams(max_tokens=0, seed=0, embeds=True)


async def _collect(stream: Stream, *, num_inputs: int) -> list[bytes]:
    vectors: dict[int, bytes] = {}
    try:
        async for delta in stream:
            if delta.embedding is not None:
                vectors[delta.choice] = delta.embedding
    finally:
        await stream.aclose()
    if len(vectors) != num_inputs:
        raise EngineFailure("the answer ended before all inputs had their embeddings")
    return [vectors[index] for index in range(num_inputs)]


def _shape(vectors: Sequence[bytes], body: EmbeddingsRequest, usage: EmbeddingUsage) -> bytes:
    write = _in_base64 if body.encoding_format == "base64" else _numbers_of
    data = [Embedding(index=index, embedding=write(vector)) for index, vector in enumerate(vectors)]
    return encode(EmbeddingList(data=data, model=body.model, usage=usage))


def _in_base64(vector: bytes) -> str:
    return base64.b64encode(vector).decode()


def _numbers_of(vector: bytes) -> list[float]:
    return list(struct.unpack(f"<{len(vector) // _NUMBER_BYTES}f", vector))
