"""What both generation endpoints do: let in, tokenise, start, answer."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from redis.exceptions import RedisError

from serving.admission.door import Door, Permit, Weight
from serving.api.context import ApiServices, RequestScope, Stream, principal_of, scope_of, services_of
from serving.api.mapping import check_request, choose_seed, num_choices_of, sampling_of, stops_of
from serving.api.merging import MergedStream
from serving.api.responses import FinishReason, Shape
from serving.api.schemas import GenerationRequest
from serving.api.streaming import open_event_stream
from serving.contracts.errors import DomainError, EngineFailure, ModelNotFound, Unavailable
from serving.contracts.ids import RequestId
from serving.contracts.sampling import SamplingParams
from serving.gateway.generation import Generation

if TYPE_CHECKING:
    from serving.gateway.pools import PoolView


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt before it is tokenised: the tokens it is taken to have, and how to get them."""

    estimated_tokens: int
    tokenise: Callable[[], Awaitable[list[int]]]


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
    with _counted_if_refused(services, pool, scope):
        stream = await _start(request, body, pool=pool, prompts=prompts)
    scope.cleanup.push_async_callback(stream.aclose)
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


async def _start(request: HttpRequest, body: GenerationRequest, *, pool: PoolView, prompts: Sequence[Prompt]) -> Stream:
    services, scope, tenant = services_of(request), scope_of(request), principal_of(request).tenant
    services.drain.check()
    if not pool.has_engines:
        raise Unavailable(f"no engine is ready to serve {pool.model!r}")
    num_choices, seed, stop = num_choices_of(body), choose_seed(body), stops_of(body)
    # The estimate is taken first, so that what the waiting room refuses costs no tokenising.
    weights = [Weight(num_choices, num_choices * prompt.estimated_tokens) for prompt in prompts]
    permits = list(await services.door.enter(pool.name, weights, tunables=pool.tunables))
    generations = []
    try:
        for index, prompt in enumerate(prompts):
            prompt_ids = await prompt.tokenise()
            params = _params_of(body, pool, num_prompt_tokens=len(prompt_ids), seed=seed)
            permits[index] = await services.door.settle(
                permits[index], num_choices * len(prompt_ids), tunables=pool.tunables
            )
            generations.append(
                Generation(
                    request_id=_request_id_of(scope, index),
                    pool=pool.name,
                    tenant=tenant,
                    prompt_ids=prompt_ids,
                    params=(params,) * num_choices,
                    stop=stop,
                    arrived_at=scope.arrived_at,
                )
            )
    except BaseException:
        await _release(services.door, permits)
        raise
    pairs = zip(generations, permits, strict=True)
    streams = [services.gateway.generate(generation, permit=permit) for generation, permit in pairs]
    return streams[0] if len(streams) == 1 else MergedStream(streams, choices_each=num_choices)


def _params_of(body: GenerationRequest, pool: PoolView, *, num_prompt_tokens: int, seed: int) -> SamplingParams:
    return sampling_of(body, num_prompt_tokens=num_prompt_tokens, max_context_tokens=pool.max_model_len, seed=seed)


def _request_id_of(scope: RequestScope, index: int) -> RequestId:
    return scope.request_id if index == 0 else RequestId(f"{scope.request_id}-{index}")


async def _release(door: Door, permits: Sequence[Permit]) -> None:
    # A permit that cannot be given back ends with its lease.
    with contextlib.suppress(RedisError, OSError):
        for permit in permits:
            await door.release(permit)


@contextlib.contextmanager
def _counted_if_refused(services: ApiServices, pool: PoolView, scope: RequestScope) -> Iterator[None]:
    """Count a request that ends before the gateway has it: the gateway counts all others."""
    try:
        yield
    except BaseException as error:
        services.observer.submitted(pool.name)
        services.observer.ended(
            pool.name,
            outcome=_outcome_of(error),
            was_scheduled=False,
            e2e_seconds=time.monotonic() - scope.arrived_at,
            prompt_tokens=0,
            completion_tokens=0,
        )
        raise


def _outcome_of(error: BaseException) -> str:
    if isinstance(error, DomainError):
        return f"refused:{error.code}"
    return "aborted" if isinstance(error, asyncio.CancelledError) else "failed:internal_error"


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
