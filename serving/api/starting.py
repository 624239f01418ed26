"""From a wish to a running request: let in at the door, tokenised, handed to the gateway. Knows no HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from redis.exceptions import RedisError

from serving.admission.accounts import Account, StaleAccount
from serving.admission.allowance import check_output, check_priority, check_prompt, longest_output
from serving.admission.door import Door, Tell
from serving.admission.drain import DrainState
from serving.admission.permits import Permit, PermitLost, Weight
from serving.admission.prediction import Load, Predictor
from serving.admission.shares import Share
from serving.admission.standing import RateLimit, counted_charges, rate_limits_of
from serving.api.context import RequestGateway, Stream
from serving.api.merging import MergedStream
from serving.api.prompts import Prompt
from serving.contracts.accounting import Spent
from serving.contracts.errors import DomainError, Unavailable
from serving.contracts.ids import RequestId
from serving.contracts.sampling import SamplingParams
from serving.gateway.generation import Generation
from serving.gateway.observer import RequestObserver

if TYPE_CHECKING:
    from serving.gateway.pools import PoolView


_ATTEMPTS_TO_ENTER = 3


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """How long each answer may be at most: `tokens`, or else what the context leaves. `field` is where the client asked
    for it; None where it did not."""

    tokens: int | None = None
    field: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """A request that nobody let in yet. `params_for` gives the sampling of every choice for a prompt of so many tokens,
    or raises the `DomainError` of one that cannot be served; of the prompt itself, the first choice alone is told.
    `arrived_at` is in seconds of the monotonic clock.

    `read_account` reads the account anew, or raises the `DomainError` of one that is no more. `tell` is told what is
    left of a minute's quotas each time that it is known."""

    request_id: RequestId
    pool: PoolView
    tenant: str
    prompts: Sequence[Prompt]
    num_choices: int
    params_for: Callable[[int], SamplingParams]
    stop: tuple[str, ...]
    arrived_at: float
    output: Output
    account: Account = dataclasses.field(default_factory=Account)
    read_account: Callable[[], Awaitable[Account]] | None = None
    tell: Callable[[list[RateLimit]], None] | None = None
    priority: int = 0
    cache_salt: str = ""
    timeout_seconds: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Starter:
    """Starts requests, whoever asks: HTTP clients and the console alike. Owns nothing; used on the gateway's loop."""

    gateway: RequestGateway
    door: Door
    observer: RequestObserver
    drain: DrainState
    predictor: Predictor

    async def start(self, request: NewRequest, *, cleanup: contextlib.AsyncExitStack) -> Stream:
        """Start a request; `cleanup` ends what still runs of it.

        Raises the `DomainError` of a request that is not let in, which then counts as refused and holds nothing. What
        fails later comes through the stream.
        """
        with self._counted_if_refused(request), _share_of(request).explained():
            stream = await self._start(request)
        cleanup.push_async_callback(stream.aclose)
        return stream

    async def _start(self, request: NewRequest) -> Stream:
        self.drain.check()
        if not request.pool.has_engines:
            raise Unavailable(f"no engine is ready to serve {request.pool.model!r}")
        pairs = await self._let_in(request)
        streams = [self.gateway.generate(generation, permit=permit) for generation, permit in pairs]
        return streams[0] if len(streams) == 1 else MergedStream(streams, choices_each=request.num_choices)

    async def _let_in(self, request: NewRequest) -> list[tuple[Generation, Permit]]:
        """All prompts, tokenised, each with a permit of its true weight.

        Tokenising may take longer than a permit's lease: then it enters anew, with what is known of the prompts by now.
        """
        tokenised: list[list[int]] = []
        for _ in range(_ATTEMPTS_TO_ENTER):
            account, permits = await self._enter(request, tokenised)
            try:
                return [
                    await self._settle(request, index, permit, account=account, tokenised=tokenised)
                    for index, permit in enumerate(permits)
                ]
            except PermitLost:
                await self._close(permits)
            except BaseException:
                await self._close(permits)
                raise
        raise Unavailable("this server is too slow now to prepare the request in time")

    async def _settle(
        self, request: NewRequest, index: int, permit: Permit, *, account: Account, tokenised: list[list[int]]
    ) -> tuple[Generation, Permit]:
        """One prompt, added to those that are `tokenised` where it is not there yet, and its permit."""
        if index == len(tokenised):
            tokenised.append(await request.prompts[index].tokenise())
        prompt_ids = tokenised[index]
        check_prompt(account, len(prompt_ids))
        generation = _generation_of(request, index, prompt_ids=prompt_ids, account=account)
        weight = _weight(request, num_tokens=len(prompt_ids), max_tokens=generation.params[0].max_tokens)
        bounds, tell = _share_of(request).bounds, _teller(request, account)
        return generation, await self.door.settle(permit, weight, tunables=bounds, tell=tell)

    async def _enter(self, request: NewRequest, tokenised: Sequence[list[int]]) -> tuple[Account, tuple[Permit, ...]]:
        """Permits for all prompts, and the account that they were charged to: that of now, whatever was known before.

        What is not `tokenised` yet is estimated, so that what is refused costs no tokenising.
        """
        account = await _account_to_try(request)
        for _ in range(_ATTEMPTS_TO_ENTER):
            _check_against(account, request)
            weights = _expected_weights(request, tokenised, account=account)
            try:
                async with self._in_time(request, weights):
                    permits = await self.door.enter(
                        request.pool.name,
                        weights,
                        tunables=_share_of(request).bounds,
                        account=account,
                        tell=_teller(request, account),
                    )
            except StaleAccount:
                assert request.read_account is not None, "an account that can grow old can be read anew"
                account = await request.read_account()
            else:
                return account, permits
        raise Unavailable("tenants, keys and quotas change too fast to tell what this request may use")

    def _in_time(self, request: NewRequest, weights: Sequence[Weight]) -> contextlib.AbstractAsyncContextManager[None]:
        """A block to enter in; raises `PredictedTooLate` where the pool is to refuse what it would serve too late."""
        tunables = request.pool.tunables
        if tunables.early_reject == "off" or self._goes_before_others(request):
            return contextlib.nullcontext()
        own = Load(sum(weight.sequences for weight in weights), sum(weight.tokens for weight in weights))
        return self.predictor.entering(
            request.pool.name, own, tunables=tunables, timeout_seconds=request.timeout_seconds
        )

    def _goes_before_others(self, request: NewRequest) -> bool:
        """Whether the order may serve it before those that wait already, so that their number predicts nothing."""
        order = request.pool.tunables.order
        if order == "priority":
            return request.priority < 0
        return order == "fair" and not self.gateway.keeps_waiting(request.pool.name, request.tenant)

    async def _close(self, permits: Sequence[Permit]) -> None:
        # A permit that cannot be given back ends with its lease.
        with contextlib.suppress(RedisError, OSError):
            for permit in permits:
                await self.door.close(permit, Spent())

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


def _share_of(request: NewRequest) -> Share:
    return Share.of(request.pool.tunables, priority=request.priority)


async def _account_to_try(request: NewRequest) -> Account:
    """The account that the request came with; where that one does not allow it, the one of now, which may."""
    try:
        _check_against(request.account, request)
    except DomainError:
        if request.read_account is None:
            raise
        return await request.read_account()
    return request.account


def _check_against(account: Account, request: NewRequest) -> None:
    """Raise what the account does not allow, as far as it can be told before the prompts are tokenised."""
    check_priority(account, request.priority)
    if request.output.field is not None and request.output.tokens is not None:
        check_output(account, request.output.tokens, field=request.output.field)
    for prompt in request.prompts:
        check_prompt(account, prompt.certain_tokens)


def _expected_weights(request: NewRequest, tokenised: Sequence[Sequence[int]], *, account: Account) -> list[Weight]:
    lengths = [len(prompt_ids) for prompt_ids in tokenised]
    lengths += [prompt.estimated_tokens for prompt in request.prompts[len(tokenised) :]]
    return [_expected_weight(request, length, account=account) for length in lengths]


def _expected_weight(request: NewRequest, num_tokens: int, *, account: Account) -> Weight:
    rest = max(1, request.pool.max_model_len - num_tokens)
    # What exceeds the context is refused by that name once it is tokenised, and by no quota before.
    limits = [min(request.output.tokens or rest, rest), longest_output(account)]
    max_tokens = min(limit for limit in limits if limit is not None)
    return _weight(request, num_tokens=num_tokens, max_tokens=max_tokens)


def _weight(request: NewRequest, *, num_tokens: int, max_tokens: int) -> Weight:
    choices = request.num_choices
    return Weight(choices, choices * num_tokens, num_tokens + choices * max_tokens)


def _teller(request: NewRequest, account: Account) -> Tell | None:
    tell, charges = request.tell, counted_charges(account)
    return None if tell is None else lambda standings: tell(rate_limits_of(charges, standings))


def _generation_of(request: NewRequest, index: int, *, prompt_ids: list[int], account: Account) -> Generation:
    params = request.params_for(len(prompt_ids))
    bound = longest_output(account)
    if bound is not None and bound < params.max_tokens:
        # Nobody named a longer one, or else it would have been refused.
        check_output(account, params.min_tokens, field="min_tokens")
        params = msgspec.structs.replace(params, max_tokens=bound)
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
        weight=account.weight,
        cache_salt=request.cache_salt,
        timeout_seconds=request.timeout_seconds,
    )


def _outcome_of(error: BaseException) -> str:
    if isinstance(error, DomainError):
        return f"refused:{error.code}"
    return "aborted" if isinstance(error, asyncio.CancelledError) else "failed:internal_error"
