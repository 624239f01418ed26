"""The console's prompts: through the door that all requests go through, and given up with whoever asked."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from typing import Any

import pytest

from serving.admission.accounts import Account, Charge
from serving.admission.door import Weight
from serving.api.context import Stream
from serving.contracts import keys
from serving.contracts.errors import (
    ContextLengthExceeded,
    DomainError,
    EngineFailure,
    InvalidValue,
    PermissionDenied,
    PoolNotFound,
    QueueFull,
    QueueTimeout,
    RateLimited,
    Unavailable,
)
from serving.contracts.quotas import Quotas
from serving.contracts.tunables import Tunables
from serving.gateway.generation import ChoiceDelta, Generation
from tests.api.conftest import CONTEXT, POOL, ScriptedGateway, ScriptedServices
from tests.api.pools import BULK, beside

NUM_TEMPLATE_TOKENS = len("<user><assistant>")
"""The tokenizer has one token a byte."""


async def ask(
    services: ScriptedServices, text: str = "Hi", *, cleanup: contextlib.AsyncExitStack, **changes: Any
) -> Stream:
    options: dict[str, Any] = {
        "pool": POOL,
        "max_tokens": 20,
        "temperature": 0.5,
        "request_id": "req_1",
        "arrived_at": time.monotonic(),
        **changes,
    }
    return await services.prompter.prompt(options.pop("pool"), text, cleanup=cleanup, **options)


async def permits_in_use(services: ScriptedServices) -> int:
    return int(await services.redis.hget(keys.permit_weights(POOL), "total:requests") or 0)


async def test_asks_the_model_as_one_user_would(services: ScriptedServices, gateway: ScriptedGateway) -> None:
    async with contextlib.AsyncExitStack() as cleanup:
        stream = await ask(services, cleanup=cleanup)
        await stream.started()
        assert [delta.text async for delta in stream] == ["Hello", " 0"]
        assert (stream.usage.prompt_tokens, stream.usage.completion_tokens) == (NUM_TEMPLATE_TOKENS + 2, 2)
    (generation,) = gateway.generations
    assert bytes(gateway.view.text_model.decode(generation.prompt_ids), "ascii") == b"<user>Hi<assistant>"
    assert (generation.request_id, generation.tenant, generation.stop) == ("req_1", "console", ())
    (params,) = generation.params
    assert (params.max_tokens, params.temperature) == (20, 0.5)


async def test_each_prompt_has_a_seed_of_its_own(services: ScriptedServices, gateway: ScriptedGateway) -> None:
    async with contextlib.AsyncExitStack() as cleanup:
        for _ in range(5):
            await ask(services, cleanup=cleanup)
    assert len({generation.params[0].seed for generation in gateway.generations}) == 5


@pytest.mark.parametrize(("num_text_tokens", "granted"), [(1, 20), (CONTEXT - NUM_TEMPLATE_TOKENS - 5, 5)])
async def test_shortens_the_answer_to_what_the_context_leaves(
    services: ScriptedServices, gateway: ScriptedGateway, num_text_tokens: int, granted: int
) -> None:
    async with contextlib.AsyncExitStack() as cleanup:
        await ask(services, "x" * num_text_tokens, cleanup=cleanup)
    assert gateway.generations[0].params[0].max_tokens == granted


async def refuse_with_no_engine(services: ScriptedServices) -> None:
    services.gateway.change_view(num_engines=0)


async def refuse_with_full_queue(services: ScriptedServices) -> None:
    tunables = Tunables(max_queue_requests=1)
    services.gateway.change_view(tunables=tunables)
    await services.door.enter(POOL, [Weight(1, 1)], tunables=tunables)


async def refuse_with_drain(services: ScriptedServices) -> None:
    services.drain.begin()


@pytest.mark.parametrize(
    ("prepare", "error"),
    [(refuse_with_no_engine, Unavailable), (refuse_with_full_queue, QueueFull), (refuse_with_drain, Unavailable)],
)
async def test_what_cannot_be_served_now_is_refused_and_counted(
    services: ScriptedServices, gateway: ScriptedGateway, prepare: Any, error: type[DomainError]
) -> None:
    await prepare(services)
    before = await permits_in_use(services)
    async with contextlib.AsyncExitStack() as cleanup:
        with pytest.raises(error) as caught:
            await ask(services, cleanup=cleanup)
    assert services.observer.outcomes == [f"refused:{caught.value.code}"]
    assert gateway.generations == []
    assert await permits_in_use(services) == before


@pytest.mark.parametrize("num_text_tokens", [CONTEXT - NUM_TEMPLATE_TOKENS, 20_000])
async def test_text_that_leaves_no_room_for_an_answer_is_refused(
    services: ScriptedServices, num_text_tokens: int
) -> None:
    async with contextlib.AsyncExitStack() as cleanup:
        with pytest.raises(
            ContextLengthExceeded, match=f"{num_text_tokens + NUM_TEMPLATE_TOKENS} .*{CONTEXT}"
        ) as caught:
            await ask(services, "x" * num_text_tokens, cleanup=cleanup)
    assert caught.value.param == "text"
    assert await permits_in_use(services) == 0


@pytest.mark.parametrize(
    ("text", "changes", "error", "param"),
    [
        ("Hi", {"pool": "other"}, PoolNotFound, None),
        ("Hi", {"max_tokens": 0}, InvalidValue, "max_tokens"),
        ("Hi", {"temperature": 2.5}, InvalidValue, "temperature"),
        ("half a pair: \ud83d", {}, InvalidValue, "text"),
    ],
)
async def test_what_makes_no_sense_is_refused_by_name(
    services: ScriptedServices, text: str, changes: dict[str, Any], error: type[DomainError], param: str | None
) -> None:
    async with contextlib.AsyncExitStack() as cleanup:
        with pytest.raises(error) as caught:
            await ask(services, text, cleanup=cleanup, **changes)
    assert caught.value.param == param
    assert await permits_in_use(services) == 0


@pytest.mark.parametrize("started", [False, True])
async def test_failure_of_the_engine_comes_through_the_stream(
    services: ScriptedServices, gateway: ScriptedGateway, started: bool
) -> None:
    def fail(generation: Generation) -> list[ChoiceDelta | DomainError]:
        text: list[ChoiceDelta | DomainError] = [ChoiceDelta(0, "some text", 2)] if started else []
        return [*text, EngineFailure("the engine died") if started else QueueTimeout("it waited too long")]

    gateway.script = fail
    async with contextlib.AsyncExitStack() as cleanup:
        stream = await ask(services, cleanup=cleanup)
        if started:
            await stream.started()
            assert (await anext(stream)).text == "some text"  # type: ignore[call-overload]
            with pytest.raises(EngineFailure):
                await anext(stream)  # type: ignore[call-overload]
        else:
            with pytest.raises(QueueTimeout):
                await stream.started()
    assert gateway.num_closed == 1


@pytest.mark.parametrize("started", [False, True])
async def test_whoever_goes_away_ends_what_they_asked_for(
    services: ScriptedServices, gateway: ScriptedGateway, started: bool
) -> None:
    gateway.holds = True

    async def read() -> None:
        async with contextlib.AsyncExitStack() as cleanup:
            stream = await ask(services, cleanup=cleanup)
            await stream.started()
            async for _ in stream:
                pass

    reader = asyncio.create_task(read())
    async with asyncio.timeout(20):
        while not gateway.streams:  # noqa: ASYNC110 (what is waited for sends no signal)
            await asyncio.sleep(0.005)
    if started:
        gateway.streams[0].mark_started()
        gateway.streams[0].push(ChoiceDelta(0, "text", 1))
        await asyncio.sleep(0.01)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    assert gateway.num_closed == 1


async def test_leaving_at_any_moment_leaves_no_permit(services: ScriptedServices, gateway: ScriptedGateway) -> None:
    async def read() -> None:
        async with contextlib.AsyncExitStack() as cleanup:
            await ask(services, "x" * 200, cleanup=cleanup)

    for index in range(40):
        reader = asyncio.create_task(read())
        for _ in range(index):
            await asyncio.sleep(0.0002)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
    # The gateway gives back the permits of what it was given; all others came back by themselves.
    for permit in gateway.permits:
        await services.door.release(permit)
    assert await permits_in_use(services) == 0
    assert gateway.num_closed == len(gateway.streams)
    assert set(services.observer.outcomes) <= {"aborted"}


async def test_prompts_go_on_the_consoles_account(services: ScriptedServices, gateway: ScriptedGateway) -> None:
    account = Account(charges=(Charge("tenant:7", Quotas(tokens_per_minute=60)),), tenant_id=7, weight=2.5)

    async def read_account() -> Account:
        return account

    services.prompter = dataclasses.replace(services.prompter, read_account=read_account)
    async with contextlib.AsyncExitStack() as cleanup:
        await ask(services, cleanup=cleanup)
        with pytest.raises(RateLimited, match="tokens_per_minute is 60"):
            await ask(services, cleanup=cleanup)
    assert [permit.account for permit in gateway.permits] == [account]
    assert gateway.generations[0].weight == 2.5


async def test_an_account_that_may_not_be_used_starts_nothing(
    services: ScriptedServices, gateway: ScriptedGateway
) -> None:
    async def read_account() -> Account:
        raise PermissionDenied("switched off")

    services.prompter = dataclasses.replace(services.prompter, read_account=read_account)
    async with contextlib.AsyncExitStack() as cleanup:
        with pytest.raises(PermissionDenied):
            await ask(services, cleanup=cleanup)
    assert gateway.generations == []


async def test_asks_no_pool_that_its_tenant_may_not_use(services: ScriptedServices, gateway: ScriptedGateway) -> None:
    async def read_account() -> Account:
        return Account(tenant_id=7, pools=("bulk",))

    prompter = dataclasses.replace(services.prompter, read_account=read_account)
    services = dataclasses.replace(services, prompter=prompter)
    async with contextlib.AsyncExitStack() as cleanup:
        with pytest.raises(PermissionDenied, match="default"):
            await ask(services, cleanup=cleanup)
        gateway.others = [beside(gateway.view, BULK)]
        await ask(services, cleanup=cleanup, pool=BULK)
    assert [(generation.pool, generation.tenant) for generation in gateway.generations] == [(BULK, "tenant:7")]
