"""From a wish to a running request: let in at the door, tokenised, handed to the gateway. Knows no HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from redis.exceptions import RedisError

from serving.admission.door import Door, Permit, Weight
from serving.admission.drain import DrainState
from serving.api.context import RequestGateway, Stream
from serving.api.merging import MergedStream
from serving.api.prompts import Prompt
from serving.contracts.errors import DomainError, Unavailable
from serving.contracts.ids import RequestId
from serving.contracts.sampling import SamplingParams
from serving.gateway.generation import Generation
from serving.gateway.observer import RequestObserver

if TYPE_CHECKING:
    from serving.gateway.pools import PoolView


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """A request that nobody let in yet. `params_for` gives the sampling of every choice for a prompt of so many tokens,
    or raises the `DomainError` of one that cannot be served; of the prompt itself, the first choice alone is told.
    `arrived_at` is in seconds of the monotonic clock."""

    request_id: RequestId
    pool: PoolView
    tenant: str
    prompts: Sequence[Prompt]
    num_choices: int
    params_for: Callable[[int], SamplingParams]
    stop: tuple[str, ...]
    arrived_at: float
    priority: int = 0
    cache_salt: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """Starts requests, whoever asks: HTTP clients and the console alike. Owns nothing; used on the gateway's loop."""

    gateway: RequestGateway
    door: Door
    observer: RequestObserver
    drain: DrainState

    async def start(self, request: NewRequest, *, cleanup: contextlib.AsyncExitStack) -> Stream:
        """Start a request; `cleanup` ends what still runs of it.

        Raises the `DomainError` of a request that is not let in, which then counts as refused and holds nothing. What
        fails later comes through the stream.
        """
        with self._counted_if_refused(request):
            stream = await self._start(request)
        cleanup.push_async_callback(stream.aclose)
        return stream

    async def _start(self, request: NewRequest) -> Stream:
        self.drain.check()
        pool = request.pool
        if not pool.has_engines:
            raise Unavailable(f"no engine is ready to serve {pool.model!r}")
        # The estimate is taken first, so that what the waiting room refuses costs no tokenising.
        weights = [
            Weight(request.num_choices, request.num_choices * prompt.estimated_tokens) for prompt in request.prompts
        ]
        permits = list(await self.door.enter(pool.name, weights, tunables=pool.tunables))
        generations = []
        try:
            for index, prompt in enumerate(request.prompts):
                prompt_ids = await prompt.tokenise()
                generations.append(_generation_of(request, index, prompt_ids=prompt_ids))
                permits[index] = await self.door.settle(
                    permits[index], request.num_choices * len(prompt_ids), tunables=pool.tunables
                )
        except BaseException:
            await self._release(permits)
            raise
        pairs = zip(generations, permits, strict=True)
        streams = [self.gateway.generate(generation, permit=permit) for generation, permit in pairs]
        return streams[0] if len(streams) == 1 else MergedStream(streams, choices_each=request.num_choices)

    async def _release(self, permits: Sequence[Permit]) -> None:
        # A permit that cannot be given back ends with its lease.
        with contextlib.suppress(RedisError, OSError):
            for permit in permits:
                await self.door.release(permit)

    @contextlib.contextmanager
    def _counted_if_refused(self, request: NewRequest) -> Iterator[None]:
        """Count a request that ends before the gateway has it: the gateway counts all others."""
        try:
            yield
        except BaseException as error:
            self.observer.submitted(request.pool.name)
            self.observer.ended(
                request.pool.name,
                outcome=_outcome_of(error),
                was_scheduled=False,
                e2e_seconds=time.monotonic() - request.arrived_at,
                prompt_tokens=0,
                completion_tokens=0,
            )
            raise


def _generation_of(request: NewRequest, index: int, *, prompt_ids: list[int]) -> Generation:
    params = request.params_for(len(prompt_ids))
    others = params
    if params.num_prompt_logprobs is not None:
        # Of one prompt there is one thing to tell; and who does not ask shares what the first computes.
        others = msgspec.structs.replace(params, num_prompt_logprobs=None)
    return Generation(
        request_id=request.request_id if index == 0 else RequestId(f"{request.request_id}-{index}"),
        pool=request.pool.name,
        tenant=request.tenant,
        prompt_ids=prompt_ids,
        params=(params, *[others] * (request.num_choices - 1)),
        stop=request.stop,
        arrived_at=request.arrived_at,
        priority=request.priority,
        cache_salt=request.cache_salt,
    )


def _outcome_of(error: BaseException) -> str:
    if isinstance(error, DomainError):
        return f"refused:{error.code}"
    return "aborted" if isinstance(error, asyncio.CancelledError) else "failed:internal_error"
