"""A request's way in: its pool, its account, and leave to wait, before and after its prompts are tokenised."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from serving.admission.accounts import Account, StaleAccount
from serving.admission.allowance import check_output, check_priority, check_prompt, longest_output
from serving.admission.cancellation import to_its_end
from serving.admission.door import Door, Tell
from serving.admission.estimates import Answers, PromptLength, estimate, weigh
from serving.admission.permits import Permit, PermitLost, Weight
from serving.admission.prediction import Load, Predictor
from serving.admission.shares import Share
from serving.admission.standing import RateLimit, counted_charges, rate_limits_of
from serving.api.context import RequestGateway
from serving.api.prompts import Prompt
from serving.api.routing import Route
from serving.contracts.errors import DomainError, NoEngine, PredictedTooLate, QueueFull, QuotaExceeded, Unavailable
from serving.contracts.ids import RequestId
from serving.contracts.sampling import SamplingParams

if TYPE_CHECKING:
    from serving.gateway.generation import Endpoint
    from serving.gateway.pools import PoolView


_ATTEMPTS_TO_ENTER = 3


class ParamsFor(Protocol):
    """How every choice of a request is sampled."""

    def __call__(self, num_prompt_tokens: int, *, max_context_tokens: int) -> SamplingParams:
        """For a prompt of so many tokens; raises the `DomainError` of one that cannot be served."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """How long each answer may be at most: `tokens`, or else what the context leaves. `field` is where the client asked
    for it; None where it did not."""

    tokens: int | None = None
    field: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewRequest:
    """A request that nobody let in yet. `params_for` gives the sampling of every choice; of the prompt itself, the
    first choice alone is told. `arrived_at` is in seconds of the monotonic clock.

    `read_account` reads the account anew, or raises the `DomainError` of one that is no more; `route_for` then says
    where its requests go, where that depends on the account. Without a `priority` it has 0, or the most urgent one that
    its account may have. `tell` is told what is left of a minute's quotas each time that it is known."""

    request_id: RequestId
    route: Route
    tenant: str
    prompts: Sequence[Prompt]
    num_choices: int
    params_for: ParamsFor
    stop: tuple[str, ...]
    arrived_at: float
    output: Output
    account: Account = dataclasses.field(default_factory=Account)
    read_account: Callable[[], Awaitable[Account]] | None = None
    route_for: Callable[[Account], Route] | None = None
    tell: Callable[[list[RateLimit]], None] | None = None
    priority: int | None = None
    cache_salt: str = ""
    timeout_seconds: float | None = None
    endpoint: Endpoint = "console"
    is_streamed: bool = False
    traceparent: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Admitted:
    """One prompt of a request that was let in, with the sampling of its choices and its permit of its true weight."""

    prompt_ids: list[int]
    params: SamplingParams
    permit: Permit


class Entering:
    """Owns what is known of one request while it enters: its `account` and route, its prompts as far as they are
    tokenised, and the `pool` at whose door it stands. On the gateway's loop; `let_in` is called once."""

    def __init__(self, request: NewRequest, *, door: Door, predictor: Predictor, gateway: RequestGateway) -> None:
        self._request = request
        self._door = door
        self._predictor = predictor
        self._gateway = gateway
        self._route = request.route
        self.account = request.account
        self._tokenised: list[list[int]] = []
        self.pool = self._pool_by_length()

    async def let_in(self) -> list[Admitted]:
        """All prompts, tokenised, each with a permit.

        Tokenising may take longer than a permit's lease, or tell that the prompts belong to another pool: then it
        enters anew, with what is known of them by now, and may find that others took the room. Raises the `DomainError`
        of a request that is not let in, which holds nothing.
        """
        num_lost = 0
        while num_lost < _ATTEMPTS_TO_ENTER:
            permits = await self._enter()
            try:
                await self._tokenise()
                if self._pool_by_length().name == self.pool.name:
                    return [await self._settle(index, permit) for index, permit in enumerate(permits)]
                # Only once: now the lengths are known.
                await to_its_end(self._door.give_back(permits))
            except PermitLost:
                num_lost += 1
                await to_its_end(self._door.give_back(permits))
            except BaseException:
                await to_its_end(self._door.give_back(permits))
                raise
        raise Unavailable("this server is too slow now to prepare the request in time")

    async def _tokenise(self) -> None:
        for prompt in self._request.prompts[len(self._tokenised) :]:
            # Who leaves gives back the permits with the thread: no sooner, or else nothing bounds what is encoded.
            self._tokenised.append(await to_its_end(prompt.tokenise()))

    async def _settle(self, index: int, permit: Permit) -> Admitted:
        prompt_ids = self._tokenised[index]
        check_prompt(self.account, len(prompt_ids))
        params = self._params_for(len(prompt_ids))
        weight = weigh(len(prompt_ids), num_choices=self._request.num_choices, max_tokens=params.max_tokens)
        share = self._share
        with share.explained():
            settled = await self._door.settle(permit, weight, tunables=share.bounds, tell=self._tell)
        return Admitted(prompt_ids, params, settled)

    def _params_for(self, num_prompt_tokens: int) -> SamplingParams:
        params = self._request.params_for(num_prompt_tokens, max_context_tokens=self.pool.max_model_len)
        bound = longest_output(self.account)
        if bound is None or bound >= params.max_tokens:
            return params
        # Nobody named a longer one, or else it would have been refused.
        check_output(self.account, params.min_tokens, field="min_tokens")
        return msgspec.structs.replace(params, max_tokens=bound)

    async def _enter(self) -> tuple[Permit, ...]:
        """Permits for all prompts, on the account of now, whatever was known before.

        What is not tokenised yet is estimated, so that what is refused costs no tokenising.
        """
        for _ in range(_ATTEMPTS_TO_ENTER):
            try:
                self._check_account()
                return await self._enter_a_pool()
            except StaleAccount:
                await self._read_account()
            except (QueueFull, QuotaExceeded):
                raise  # the door has made sure that the account is that of now
            except DomainError as error:
                # That of now may allow it, or other pools; but neither helps where Redis or the ledger is out of reach.
                is_out_of_reach = isinstance(error, Unavailable) and not isinstance(error, NoEngine)
                if is_out_of_reach or not await self._has_newer_account():
                    raise
        raise Unavailable("tenants, keys and quotas change too fast to tell what this request may use")

    async def _enter_a_pool(self) -> tuple[Permit, ...]:
        """By length, as far as it is known; a pool that is full or too slow, and was only guessed, is no reason to
        refuse."""
        self.pool = self._pool_by_length()
        if not self.pool.has_engines:
            raise NoEngine(
                f"no engine of pool {self.pool.name!r} is ready to serve {self.pool.model!r}",
                retry_after_seconds=self._predictor.retry_after_seconds(self.pool.name),
            )
        try:
            return await self._enter_by_estimate()
        except (QueueFull, QuotaExceeded, PredictedTooLate) as refusal:
            other = self._route.other_than(self.pool)
            if other is None or not self._may_help(other, refusal):
                raise
            self.pool = other
            return await self._enter_by_estimate()

    async def _enter_by_estimate(self) -> tuple[Permit, ...]:
        context = self.pool.max_model_len
        estimated = estimate(
            # What exceeds the context is refused by that name once it is tokenised, and by no bound before.
            [length.within(context) for length in self._lengths()],
            answers=Answers(
                num_choices=self._request.num_choices,
                max_tokens=self._request.output.tokens,
                max_model_len=context,
            ),
            account=self.account,
            bounds=self._share.bounds,
        )
        try:
            return await self._enter_as(estimated.expected)
        except (QueueFull, QuotaExceeded) as refusal:
            if not refusal.is_final or estimated.least == estimated.expected:
                raise
            # Nobody is refused for good on a guess: once it is tokenised, it is told for certain.
            return await self._enter_as(estimated.least)

    async def _enter_as(self, weights: Sequence[Weight]) -> tuple[Permit, ...]:
        share = self._share
        async with self._in_time(weights):
            with share.explained():
                return await self._door.enter(
                    self.pool.name, weights, tunables=share.bounds, account=self.account, tell=self._tell
                )

    async def _has_newer_account(self) -> bool:
        if self._request.read_account is None:
            return False
        epoch = self.account.epoch
        await self._read_account()
        return self.account.epoch != epoch

    async def _read_account(self) -> None:
        request = self._request
        assert request.read_account is not None, "an account that can grow old can be read anew"
        self.account = await request.read_account()
        if request.route_for is not None:
            self._route = request.route_for(self.account)

    def _check_account(self) -> None:
        """Raise what the account does not allow, as far as it can be told before the prompts are tokenised."""
        request, account = self._request, self.account
        check_priority(account, self.priority)
        if request.output.field is not None and request.output.tokens is not None:
            check_output(account, request.output.tokens, field=request.output.field)
        for prompt in request.prompts:
            check_prompt(account, prompt.length.least)

    def _lengths(self) -> list[PromptLength]:
        known = [PromptLength.exactly(len(prompt_ids)) for prompt_ids in self._tokenised]
        return known + [prompt.length for prompt in self._request.prompts[len(known) :]]

    def _pool_by_length(self) -> PoolView:
        return self._pool_for(max(length.expected for length in self._lengths()))

    def _pool_for(self, num_prompt_tokens: int) -> PoolView:
        wanted = self._request.output.tokens
        return self._route.pool_for(num_prompt_tokens, num_output_tokens=1 if wanted is None else wanted)

    def _may_help(self, other: PoolView, refusal: QueueFull | QuotaExceeded | PredictedTooLate) -> bool:
        """Whether the prompts may be `other`'s, once they are tokenised, and it need not refuse them too: with half or
        three times the tokens that they are taken for, or with any where the refusal is for good."""
        lengths = self._lengths()
        if all(length.least == length.most for length in lengths):
            return False
        if isinstance(refusal, QuotaExceeded) and other.max_model_len == self.pool.max_model_len:
            return False  # quotas count over all pools: only another context changes what is charged
        if not isinstance(refusal, PredictedTooLate) and refusal.is_final:
            return True
        longest = max(length.expected for length in lengths)
        return other.name in {self._pool_for(longest // 2).name, self._pool_for(longest * 3).name}

    @property
    def priority(self) -> int:
        """How urgent it is; what nobody asked for is no reason to refuse it."""
        wanted = self._request.priority
        return max(0, self.account.most_urgent) if wanted is None else wanted

    @property
    def _share(self) -> Share:
        return Share.of(self.pool.tunables, priority=self.priority)

    @property
    def _tell(self) -> Tell | None:
        tell, charges = self._request.tell, counted_charges(self.account)
        return None if tell is None else lambda standings: tell(rate_limits_of(charges, standings))

    def _in_time(self, weights: Sequence[Weight]) -> contextlib.AbstractAsyncContextManager[None]:
        """A block to enter in; raises `PredictedTooLate` where the pool is to refuse what it would serve too late."""
        tunables = self.pool.tunables
        if tunables.early_reject == "off" or self._goes_before_others():
            return contextlib.nullcontext()
        own = Load(sum(weight.sequences for weight in weights), sum(weight.tokens for weight in weights))
        return self._predictor.entering(
            self.pool.name, own, tunables=tunables, timeout_seconds=self._request.timeout_seconds
        )

    def _goes_before_others(self) -> bool:
        """Whether the order may serve it before those that wait already, so that their number predicts nothing."""
        order = self.pool.tunables.order
        if order == "priority":
            return self.priority < 0
        return order == "fair" and not self._gateway.keeps_waiting(self.pool.name, self._request.tenant)
