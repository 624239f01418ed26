"""What both generation endpoints do: start, and answer streamed or whole."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Sequence

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase

from serving.api.answers import Answer
from serving.api.beginning import POOL_HEADER, begin
from serving.api.best import best_answers
from serving.api.context import Stream, scope_of, services_of
from serving.api.echo import PromptOnlyStream
from serving.api.entering import Output
from serving.api.finding import route_of_now
from serving.api.mapping import (
    DEFAULT_COMPLETION_TOKENS,
    check_request,
    choose_seed,
    is_prompt_only,
    limit_of,
    num_choices_of,
    num_logprobs_of,
    num_prompt_logprobs_of,
    num_sequences_of,
    picks_best,
    sampling_of,
    stops_of,
)
from serving.api.parts import finish_reason_of
from serving.api.prompts import Prompt
from serving.api.responses import Shape
from serving.api.routing import Route
from serving.api.schemas import CompletionRequest, GenerationRequest
from serving.api.shared_prompts import SharedPromptStream
from serving.api.streaming import open_event_stream
from serving.api.structured import checked, grammar_of
from serving.api.tool_streams import ToolCallStream, calls_together
from serving.api.tools import ToolUse
from serving.contracts.errors import EngineFailure
from serving.contracts.ids import RequestId
from serving.gateway.generation import ChoiceDelta


async def find_route_for(request: HttpRequest, body: GenerationRequest) -> Route:
    """Where the request may go; raises what `find_route` does, and what is wrong with the request itself."""
    route = await route_of_now(request, body.model, named=body.pool)
    check_request(body, vocab_size=route.text_model.vocab_size)
    return route


async def answer(
    request: HttpRequest,
    body: GenerationRequest,
    *,
    route: Route,
    prompts: Sequence[Prompt],
    shape: Shape,
    tool_use: ToolUse | None = None,
) -> HttpResponseBase:
    """Run a request and answer it, streamed or whole. What it holds is given up with the HTTP request at the latest."""
    services, scope = services_of(request), scope_of(request)
    forced = None if tool_use is None else tool_use.grammar
    grammar = forced or grammar_of(body)
    started = await begin(
        request,
        route=route,
        model=body.model,
        named=body.pool,
        prompts=checked(prompts, grammar, text_model=route.text_model, param="tools" if forced is not None else None),
        num_choices=num_sequences_of(body),
        params_for=functools.partial(sampling_of, body, seed=choose_seed(body), grammar=grammar),
        stop=stops_of(body),
        output=output_of(body),
        priority=body.priority,
        cache_salt=body.cache_salt or "",
        timeout_seconds=body.timeout,
        endpoint="completion" if isinstance(body, CompletionRequest) else "chat",
        is_streamed=body.stream is True,
    )
    stream = _as_asked(started.stream, body, tool_use=tool_use, request_id=scope.request_id)
    num_choices = len(prompts) * num_sequences_of(body)
    response: HttpResponseBase
    if body.stream:
        response = await open_event_stream(
            stream,
            shape,
            num_choices=num_choices,
            include_usage=body.include_usage,
            hold_seconds=services.header_hold_seconds,
            cleanup=scope.cleanup,
        )
    else:
        content = await _answer_whole(stream, body, shape, num_choices=num_choices)
        response = HttpResponse(content, content_type="application/json")
    response.headers[POOL_HEADER] = started.pool
    return response


def _as_asked(stream: Stream, body: GenerationRequest, *, tool_use: ToolUse | None, request_id: RequestId) -> Stream:
    """What is told of a stream that runs."""
    if num_prompt_logprobs_of(body) is not None:
        stream = SharedPromptStream(stream, choices_each=num_sequences_of(body))
    if is_prompt_only(body):
        stream = PromptOnlyStream(stream)
    return stream if tool_use is None else ToolCallStream(stream, tool_use, request_id=request_id)


async def _answer_whole(stream: Stream, body: GenerationRequest, shape: Shape, *, num_choices: int) -> bytes:
    answers = await _collect(stream, num_choices=num_choices)
    if picks_best(body):
        answers = best_answers(
            answers,
            wanted=num_choices_of(body),
            generated=num_sequences_of(body),
            tells_logprobs=num_logprobs_of(body) is not None,
        )
    return await _shape_whole(answers, stream, shape)


def output_of(body: GenerationRequest) -> Output:
    """How long each answer may be."""
    wanted = limit_of(body)
    if is_prompt_only(body):
        return Output(1)
    if wanted is not None:
        field = "max_completion_tokens" if getattr(body, "max_completion_tokens", None) is not None else "max_tokens"
        return Output(wanted, field)
    return Output(DEFAULT_COMPLETION_TOKENS if isinstance(body, CompletionRequest) else None)


async def _collect(stream: Stream, *, num_choices: int) -> list[Answer]:
    gathered: list[list[ChoiceDelta]] = [[] for _ in range(num_choices)]
    try:
        async for delta in stream:
            gathered[delta.choice].append(delta)
    finally:
        await stream.aclose()
    return [_whole(deltas) for deltas in gathered]


async def _shape_whole(answers: Sequence[Answer], stream: Stream, shape: Shape) -> bytes:
    if all(answer.logprobs is None and answer.prompt is None for answer in answers):
        return shape.whole(answers, stream.usage)
    return await asyncio.to_thread(shape.whole, answers, stream.usage)


def _whole(deltas: Sequence[ChoiceDelta]) -> Answer:
    if not deltas or (reason := finish_reason_of(deltas[-1])) is None:
        raise EngineFailure("the answer ended before all of its choices did")
    logprobs = [delta.logprobs for delta in deltas if delta.logprobs is not None]
    return Answer(
        text="".join([delta.text for delta in deltas]),
        finish_reason=reason,
        logprobs=tuple(itertools.chain.from_iterable(logprobs)) if logprobs else None,
        prompt=next((delta.prompt for delta in deltas if delta.prompt is not None), None),
        calls=calls_together(deltas),
    )
