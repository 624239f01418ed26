"""From a wish to a running request, where the account has changed meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from serving.admission.accounts import Account, Charge
from serving.api.prompts import plain_prompt
from serving.api.starting import NewRequest, Output
from serving.contracts import keys
from serving.contracts.errors import InvalidKey, InvalidValue, Unavailable
from serving.contracts.ids import RequestId
from serving.contracts.quotas import Quotas
from serving.contracts.sampling import SamplingParams
from tests.api.conftest import ScriptedServices


def wish(services: ScriptedServices, account: Account, read: Callable[[], Account]) -> NewRequest:
    async def read_account() -> Account:
        return read()

    return NewRequest(
        request_id=RequestId("req_1"),
        pool=services.gateway.view,
        tenant="tests",
        prompts=[plain_prompt(services.gateway.view, "Hi")],
        num_choices=1,
        params_for=lambda _: SamplingParams(max_tokens=8, seed=1),
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
