"""What both generation endpoints do: start, and answer streamed or whole."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from serving.api.context import ApiServices, Stream, principal_of, scope_of, services_of
from serving.api.mapping import check_request, choose_seed, num_choices_of, sampling_of, stops_of
from serving.api.prompts import Prompt
from serving.api.responses import FinishReason, Shape
from serving.api.schemas import GenerationRequest
from serving.api.starting import NewRequest
from serving.api.streaming import open_event_stream
from serving.contracts.errors import EngineFailure, ModelNotFound

if TYPE_CHECKING:
    from serving.gateway.pools import PoolView


def find_pool_for(services: ApiServices, body: GenerationRequest) -> PoolView:
    """The pool that serves the model asked for; raises `ModelNotFound` and what is wrong with the request itself."""
    pool = services.gateway.pool_of(body.model)
    if pool is None:
        raise ModelNotFound(f"the model {body.model!r} does not exist: /v1/models lists those that do", param="model")
    check_request(body, vocab_size=pool.text_model.vocab_size)
    return pool


async def answer(
    request: HttpRequest, body: GenerationRequest, *, pool: PoolView, prompts: Sequence[Prompt], shape: Shape
) -> HttpResponseBase:
    """Run a request and answer it, streamed or whole. What it holds is given up with the HTTP request at the latest."""
    services, scope = services_of(request), scope_of(request)
    new_request = _new_request(request, body, pool=pool, prompts=prompts)
    stream = await services.starter.start(new_request, cleanup=scope.cleanup)
    num_choices = len(prompts) * num_choices_of(body)
    if body.stream:
        return await open_event_stream(
            stream,
            shape,
            num_choices=num_choices,
            include_usage=body.include_usage,
            hold_seconds=services.header_hold_seconds,
            cleanup=scope.cleanup,
        )
    content = await _collect(stream, shape, num_choices=num_choices)
    return HttpResponse(content, content_type="application/json")


def _new_request(
    request: HttpRequest, body: GenerationRequest, *, pool: PoolView, prompts: Sequence[Prompt]
) -> NewRequest:
    scope = scope_of(request)
    return NewRequest(
        request_id=scope.request_id,
        pool=pool,
        tenant=principal_of(request).tenant,
        prompts=prompts,
        num_choices=num_choices_of(body),
        params_for=functools.partial(sampling_of, body, max_context_tokens=pool.max_model_len, seed=choose_seed(body)),
        stop=stops_of(body),
        arrived_at=scope.arrived_at,
    )


async def _collect(stream: Stream, shape: Shape, *, num_choices: int) -> bytes:
    texts: list[list[str]] = [[] for _ in range(num_choices)]
    reasons: list[FinishReason | None] = [None] * num_choices
    try:
        async for delta in stream:
            texts[delta.choice].append(delta.text)
            reasons[delta.choice] = delta.finish_reason or reasons[delta.choice]
    finally:
        await stream.aclose()
    ended = [reason for reason in reasons if reason is not None]
    if len(ended) != num_choices:
        raise EngineFailure("the answer ended before all of its choices did")
    return shape.whole(["".join(parts) for parts in texts], ended, stream.usage)
