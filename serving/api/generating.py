"""What both generation endpoints do: start, and answer streamed or whole."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from serving.api.context import ApiServices, Stream, principal_of, scope_of, services_of
from serving.api.echo import PromptOnlyStream
from serving.api.mapping import (
    check_request,
    choose_seed,
    is_prompt_only,
    num_choices_of,
    num_prompt_logprobs_of,
    sampling_of,
    stops_of,
)
from serving.api.prompts import Prompt
from serving.api.responses import Answer, Shape
from serving.api.schemas import GenerationRequest
from serving.api.shared_prompts import SharedPromptStream
from serving.api.starting import NewRequest
from serving.api.streaming import open_event_stream
from serving.contracts.errors import EngineFailure, ModelNotFound
from serving.gateway.generation import ChoiceDelta

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
    if num_prompt_logprobs_of(body) is not None:
        stream = SharedPromptStream(stream, choices_each=num_choices_of(body))
    if is_prompt_only(body):
        stream = PromptOnlyStream(stream)
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
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
    )


async def _collect(stream: Stream, shape: Shape, *, num_choices: int) -> bytes:
    gathered: list[list[ChoiceDelta]] = [[] for _ in range(num_choices)]
    try:
        async for delta in stream:
            gathered[delta.choice].append(delta)
    finally:
        await stream.aclose()
    answers = [_whole(deltas) for deltas in gathered]
    if all(answer.logprobs is None and answer.prompt is None for answer in answers):
        return shape.whole(answers, stream.usage)
    return await asyncio.to_thread(shape.whole, answers, stream.usage)


def _whole(deltas: Sequence[ChoiceDelta]) -> Answer:
    if not deltas or (reason := deltas[-1].finish_reason) is None:
        raise EngineFailure("the answer ended before all of its choices did")
    logprobs = [delta.logprobs for delta in deltas if delta.logprobs is not None]
    return Answer(
        text="".join([delta.text for delta in deltas]),
        finish_reason=reason,
        logprobs=tuple(itertools.chain.from_iterable(logprobs)) if logprobs else None,
        prompt=next((delta.prompt for delta in deltas if delta.prompt is not None), None),
    )
