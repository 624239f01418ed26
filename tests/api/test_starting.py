"""From a wish to a running request, where the account has changed meanwhile."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable
from typing import Any

import pytest

from serving.admission.accounts import Account, Charge
from serving.admission.door import Door
from serving.admission.estimates import PromptLength
from serving.admission.permits import Permit, Weight
from serving.api.entering import NewRequest, Output
from serving.api.prompts import Prompt, plain_prompt
from serving.api.routing import Route
from serving.contracts import keys
from serving.contracts.errors import InvalidKey, InvalidValue, Unavailable
from serving.contracts.ids import RequestId
from serving.contracts.quotas import Quotas
from serving.contracts.sampling import SamplingParams
from tests.admission.quotas import passing_leases, sums
from tests.api.conftest import ScriptedServices


def wish(services: ScriptedServices, account: Account, read: Callable[[], Account]) -> NewRequest:
    async def read_account() -> Account:
        return read()

    return NewRequest(
        request_id=RequestId("req_1"),
        route=Route(services.gateway.view),
        tenant="tests",
        prompts=[plain_prompt(Route(services.gateway.view), "Hi")],
        num_choices=1,
        params_for=lambda _, max_context_tokens: SamplingParams(max_tokens=8, seed=1),
        stop=(),
        arrived_at=time.monotonic(),
        output=Output(8, "max_tokens"),
        account=account,
        read_account=read_account,
    )


def account(epoch: str, *, weight: float = 1.0, **quotas: int) -> Account:
    return Account(charges=(Charge("tenant:1", Quotas(**quotas)),), epoch=epoch, weight=weight)


async def start(services: ScriptedServices, request: NewRequest) -> None:
    async with contextlib.AsyncExitStack() as cleanup:
        await services.starter.start(request, cleanup=cleanup)


async def test_stale_account_is_read_anew_and_goes_by_what_holds_now(services: ScriptedServices) -> None:
    await services.redis.set(keys.admission_epoch(), "new")
    await start(services, wish(services, account("old"), lambda: account("new", weight=3.0)))
    assert [generation.weight for generation in services.gateway.generations] == [3.0]
    with pytest.raises(InvalidValue, match="max_output_tokens"):
        await start(services, wish(services, account("old"), lambda: account("new", max_output_tokens=7)))


async def test_account_that_is_no_more_is_refused(services: ScriptedServices) -> None:
    def refuse() -> Account:
        raise InvalidKey("revoked")

    await services.redis.set(keys.admission_epoch(), "new")
    with pytest.raises(InvalidKey):
        await start(services, wish(services, account("old"), refuse))
    assert services.observer.outcomes == ["refused:invalid_api_key"]
    assert services.gateway.generations == []


async def test_accounts_that_never_settle_make_it_unavailable(services: ScriptedServices) -> None:
    numbers = iter(range(100))
    await services.redis.set(keys.admission_epoch(), "new")
    with pytest.raises(Unavailable):
        await start(services, wish(services, account("old"), lambda: account(f"old {next(numbers)}")))
    assert next(numbers) <= 3
    assert services.observer.outcomes == ["refused:unavailable"]


class SlowPrompts:
    """Two prompts, of 10 and 11 tokens; so many times, all leases end before the second is settled."""

    def __init__(self, services: ScriptedServices, *, num_losses: int) -> None:
        self.redis = services.redis
        self.num_losses = num_losses
        self.num_tokenised = [0, 0]

    def wish(self, services: ScriptedServices) -> NewRequest:
        bounded = account("now", tokens_per_minute=1000)
        prompts = [Prompt(PromptLength(1, 3, 512), functools.partial(self.tokenise, index)) for index in range(2)]
        return dataclasses.replace(wish(services, bounded, lambda: bounded), prompts=prompts)

    async def tokenise(self, index: int) -> list[int]:
        self.num_tokenised[index] += 1
        if index == 1:
            await self.lose_leases()
        return [5] * (10 + index)

    async def lose_leases(self) -> None:
        if self.num_losses:
            self.num_losses -= 1
            await passing_leases(self.redis)


async def test_request_whose_lease_ends_while_it_is_prepared_enters_anew_with_what_is_known(
    services: ScriptedServices,
) -> None:
    await services.redis.set(keys.admission_epoch(), "now")
    slow = SlowPrompts(services, num_losses=1)
    await start(services, slow.wish(services))
    assert slow.num_tokenised == [1, 1]
    assert [permit.weight for permit in services.gateway.permits] == [Weight(1, 10, 18), Weight(1, 11, 19)]
    assert (await sums(services.redis))["tokens"] == 18 + 19
    assert (await sums(services.redis))["open"] == 2
    assert services.observer.outcomes == []


async def test_request_that_never_gets_ready_in_time_is_refused_and_holds_nothing(
    services: ScriptedServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    await services.redis.set(keys.admission_epoch(), "now")
    slow = SlowPrompts(services, num_losses=100)
    settle, num_settled = Door.settle, 0

    async def settle_late(door: Door, permit: Permit, *arguments: Any, **options: Any) -> Permit:
        nonlocal num_settled
        num_settled += 1
        await slow.lose_leases()
        return await settle(door, permit, *arguments, **options)

    monkeypatch.setattr(Door, "settle", settle_late)
    with pytest.raises(Unavailable):
        await start(services, slow.wish(services))
    assert num_settled == 3
    assert (await sums(services.redis))["open"] == (await sums(services.redis))["tokens"] == 0
    assert await services.redis.hget(keys.permit_weights(services.gateway.view.name), "total:requests") == b"0"
    assert services.observer.outcomes == ["refused:unavailable"]
