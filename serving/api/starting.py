"""From a wish to a running request: let in at the door, tokenised, handed to the gateway. Knows no HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Iterator

import msgspec

from serving.admission.accounts import Account
from serving.admission.door import Door
from serving.admission.drain import DrainState
from serving.admission.prediction import Predictor
from serving.api.context import RequestGateway, Stream
from serving.api.entering import Admitted, Entering, NewRequest
from serving.api.merging import MergedStream
from serving.contracts.errors import DomainError
from serving.contracts.ids import PoolName, RequestId
from serving.gateway.generation import Generation, Origin
from serving.gateway.observer import Ended, RequestObserver


@dataclasses.dataclass(frozen=True, slots=True)
class Started:
    """A request that was let in: its text as it comes, and the pool that runs it."""

    stream: Stream
    pool: PoolName


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """Starts requests, whoever asks: HTTP clients and the console alike. Owns nothing; used on the gateway's loop."""

    gateway: RequestGateway
    door: Door
    observer: RequestObserver
    drain: DrainState
    predictor: Predictor

    async def start(self, request: NewRequest, *, cleanup: contextlib.AsyncExitStack) -> Started:
        """Start a request; `cleanup` ends what still runs of it.

        Raises the `DomainError` of a request that is not let in, which then counts as refused, by the pool at whose
        door it stood last, and holds nothing. What fails later comes through the stream.
        """
        entering = Entering(request, door=self.door, predictor=self.predictor, gateway=self.gateway)
        with self._counted_if_refused(request, entering):
            self.drain.check()
            streams = [
                self.gateway.generate(_generation_of(entering, request, index, admitted), permit=admitted.permit)
                for index, admitted in enumerate(await entering.let_in())
            ]
        stream = streams[0] if len(streams) == 1 else MergedStream(streams, choices_each=request.num_choices)
        cleanup.push_async_callback(stream.aclose)
        return Started(stream, entering.pool.name)

    @contextlib.contextmanager
    def _counted_if_refused(self, request: NewRequest, entering: Entering) -> Iterator[None]:
        """Count a request that ends before the gateway has it: the gateway counts all others."""
        try:
            yield
        except BaseException as error:
            pool = entering.pool.name
            self.observer.submitted(pool)
            self.observer.ended(
                Ended(
                    request_id=request.request_id,
                    pool=pool,
                    outcome=_outcome_of(error),
                    was_scheduled=False,
                    e2e_seconds=time.monotonic() - request.arrived_at,
                    num_choices=request.num_choices,
                    origin=_origin_of(request, entering.account),
                    priority=entering.priority,
                    timeout_seconds=request.timeout_seconds,
                )
            )
            raise


def _generation_of(entered: Entering, request: NewRequest, index: int, admitted: Admitted) -> Generation:
    params = others = admitted.params
    if params.num_prompt_logprobs is not None:
        # Of one prompt there is one thing to tell; and who does not ask shares what the first computes.
        others = msgspec.structs.replace(params, num_prompt_logprobs=None)
    return Generation(
        request_id=request.request_id if index == 0 else RequestId(f"{request.request_id}-{index}"),
        pool=entered.pool.name,
        tenant=request.tenant,
        prompt_ids=admitted.prompt_ids,
        params=(params, *[others] * (request.num_choices - 1)),
        stop=request.stop,
        arrived_at=request.arrived_at,
        priority=entered.priority,
        weight=entered.account.weight,
        cache_salt=request.cache_salt,
        timeout_seconds=request.timeout_seconds,
        origin=_origin_of(request, entered.account),
    )


def _origin_of(request: NewRequest, account: Account) -> Origin:
    return Origin(
        endpoint=request.endpoint,
        is_streamed=request.is_streamed,
        traceparent=request.traceparent,
        tenant_id=account.tenant_id,
        tenant_name=account.tenant_name,
        key_prefix=account.key_prefix,
        keeps_text=account.keeps_text,
    )


def _outcome_of(error: BaseException) -> str:
    if isinstance(error, DomainError):
        return f"refused:{error.code}"
    return "aborted" if isinstance(error, asyncio.CancelledError) else "failed:internal_error"
