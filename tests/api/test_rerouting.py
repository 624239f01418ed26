"""Requests that come to the wrong pool's door, since their length or their account was not known for certain."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from typing import Any

import httpx
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from serving.admission.accounts import Account
from serving.admission.estimates import PromptLength
from serving.admission.pace import PoolPace
from serving.admission.permits import Weight
from serving.admission.prediction import Predictor
from serving.api.entering import NewRequest
from serving.api.prompts import Prompt
from serving.api.routing import find_route
from serving.contracts import keys
from serving.contracts.accounting import Spent
from serving.contracts.ids import PoolName
from serving.contracts.tunables import Tunables
from serving.threads import in_thread
from serving.tuning.services import ensure_pool
from tests.admission.quotas import passing_leases, sums
from tests.api.conftest import CONTEXT, MODEL, POOL, ScriptedGateway, ScriptedServices
from tests.api.envelope import error_of
from tests.api.pools import BULK, SPARE, beside, completion, sends_long_to, waiting
from tests.api.tenancy import TENANTS, new_key, new_tenant
from tests.api.test_starting import account, start, wish

COMPLETIONS, CHAT, EMBEDDINGS = "/v1/completions", "/v1/chat/completions", "/v1/embeddings"
EMBEDDING = {"model": MODEL, "input": "a"}
SEEMS_LONG = {"model": MODEL, "messages": [{"role": "user", "content": "a"}] * 40, "max_tokens": 4}
"""Taken for 333 tokens before it is tokenised, and really 291."""
ONE_PLACE = Tunables(max_queue_requests=1, urgent_queue_ratio=0)


@pytest.fixture(autouse=True)
def pools(gateway: ScriptedGateway) -> None:
    """Two more pools; prompts of more than 100 tokens go from the first one to `bulk`."""
    gateway.others = [beside(gateway.view, BULK), beside(gateway.view, SPARE)]
    gateway.view = sends_long_to(gateway.view, BULK, above=100)


def change_bulk(gateway: ScriptedGateway, **changes: Any) -> None:
    gateway.others[0] = dataclasses.replace(gateway.others[0], **changes)


def pool_of(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return response.headers["x-footplate-pool"]


# --- contexts that differ ---


async def test_long_prompt_that_the_bulk_pool_cannot_hold_stays_at_home(
    client: httpx.AsyncClient, gateway: ScriptedGateway
) -> None:
    change_bulk(gateway, max_model_len=256)
    assert pool_of(await client.post(COMPLETIONS, json=completion([5] * 300))) == POOL
    assert pool_of(await client.post(COMPLETIONS, json=completion([5] * 200, max_tokens=100))) == POOL
    assert pool_of(await client.post(COMPLETIONS, json=completion([5] * 200))) == BULK


async def test_prompt_that_the_own_pool_cannot_hold_goes_where_it_fits(
    client: httpx.AsyncClient, gateway: ScriptedGateway
) -> None:
    gateway.view = sends_long_to(dataclasses.replace(gateway.view, max_model_len=128), BULK, above=400)
    assert pool_of(await client.post(COMPLETIONS, json=completion([5] * 300))) == BULK
    assert pool_of(await client.post(COMPLETIONS, json=completion([5] * 50, max_tokens=200))) == BULK
    assert pool_of(await client.post(COMPLETIONS, json=completion([5] * 50))) == POOL
    too_long = await client.post(COMPLETIONS, json=completion([5] * CONTEXT))
    assert error_of(too_long, status=400)["code"] == "context_length_exceeded"


async def test_input_to_embed_may_fill_its_own_pools_context(
    client: httpx.AsyncClient, gateway: ScriptedGateway
) -> None:
    """It leaves no room for an answer, and needs none."""
    gateway.view = sends_long_to(dataclasses.replace(gateway.view, max_model_len=128), BULK, above=128)
    assert pool_of(await client.post(EMBEDDINGS, json={**EMBEDDING, "input": [5] * 128})) == POOL
    change_bulk(gateway, max_model_len=200)
    gateway.view = sends_long_to(dataclasses.replace(gateway.view, max_model_len=CONTEXT), BULK, above=100)
    assert pool_of(await client.post(EMBEDDINGS, json={**EMBEDDING, "input": [5] * 200})) == BULK


# --- pools that are full ---


@pytest.mark.parametrize("num_choices", [1, 2])
async def test_prompts_that_only_seem_long_do_not_depend_on_the_bulk_pool(
    client: httpx.AsyncClient, services: ScriptedServices, num_choices: int
) -> None:
    """Neither while it is full nor where it could never take them."""
    services.gateway.view = sends_long_to(services.gateway.view, BULK, above=300)
    change_bulk(services.gateway, tunables=ONE_PLACE)
    await services.door.enter(BULK, [Weight(1, 1)], tunables=ONE_PLACE)
    assert pool_of(await client.post(CHAT, json={**SEEMS_LONG, "n": num_choices})) == POOL
    assert (await waiting(services, BULK), await waiting(services, POOL)) == (1, num_choices)


async def test_prompts_that_only_seem_short_do_not_depend_on_a_home_that_is_full(
    client: httpx.AsyncClient, services: ScriptedServices
) -> None:
    """200 bytes are taken for 66 tokens, and are 200."""
    services.gateway.view = sends_long_to(
        services.gateway.view, BULK, above=100, max_queue_requests=1, urgent_queue_ratio=0
    )
    await services.door.enter(POOL, [Weight(1, 1)], tunables=ONE_PLACE)
    assert pool_of(await client.post(COMPLETIONS, json=completion("a" * 200))) == BULK


@pytest.mark.parametrize(
    ("tunables", "above", "prompt", "num_choices"),
    [
        ({"max_queue_requests": 1}, 100, "a" * 200, 2),
        ({"max_queue_tokens": 4}, 3, "a" * 10, 8),
        # Taken for 8 and 66 tokens, of which neither half nor three times as many are long.
        ({"max_queue_requests": 1}, 24, "a" * 25, 2),
        ({"max_queue_requests": 1}, 199, "a" * 200, 2),
    ],
)
async def test_prompts_that_only_seem_short_are_not_refused_for_good_at_home(
    client: httpx.AsyncClient,
    gateway: ScriptedGateway,
    tunables: dict[str, Any],
    above: int,
    prompt: str,
    num_choices: int,
) -> None:
    gateway.view = sends_long_to(gateway.view, BULK, above=above, urgent_queue_ratio=0, **tunables)
    assert pool_of(await client.post(COMPLETIONS, json=completion(prompt, n=num_choices))) == BULK


async def test_quota_that_one_pool_would_exceed_for_good_does_not_keep_it_from_the_other(
    client: httpx.AsyncClient, gateway: ScriptedGateway
) -> None:
    """Without a limit an answer is charged with what the pool's context leaves."""
    change_bulk(gateway, max_model_len=256)
    tenant = await new_tenant(client, quotas={"tokens_per_minute": 400})
    key = {"Authorization": f"Bearer {(await new_key(client, tenant))['key']}"}
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a" * 190}]}
    assert pool_of(await client.post(CHAT, json=body, headers=key)) == BULK


@pytest.mark.parametrize(
    ("num_bytes", "num_tokenised"),
    [
        (250, 1),  # taken for 83 tokens: may be short or long
        (700, 0),  # taken for 233: long, whatever the tokeniser would say
    ],
)
async def test_long_prompts_are_refused_while_the_bulk_pool_is_full(
    client: httpx.AsyncClient,
    services: ScriptedServices,
    monkeypatch: pytest.MonkeyPatch,
    num_bytes: int,
    num_tokenised: int,
) -> None:
    change_bulk(services.gateway, tunables=ONE_PLACE, max_model_len=2000)
    await services.door.enter(BULK, [Weight(1, 1)], tunables=ONE_PLACE)
    tokenised = _count_tokenised(services, monkeypatch)
    refused = await client.post(COMPLETIONS, json=completion("a" * num_bytes))
    assert error_of(refused, status=429)["code"] == "queue_full"
    assert len(tokenised) == num_tokenised
    assert (services.observer.outcomes, services.observer.pools) == (["refused:queue_full"], [BULK])
    assert await waiting(services, POOL) == 0


def _count_tokenised(services: ScriptedServices, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    tokenised: list[str] = []
    kind = type(services.gateway.view.text_model)
    encode = kind.encode_async

    async def counted(model: Any, text: str, **options: Any) -> list[int]:
        tokenised.append(text)
        return await encode(model, text, **options)

    monkeypatch.setattr(kind, "encode_async", counted)
    return tokenised


async def test_prompts_that_only_seem_long_do_not_depend_on_a_slow_bulk_pool(
    client: httpx.AsyncClient, gateway: ScriptedGateway, slow_bulk: None
) -> None:
    gateway.view = sends_long_to(gateway.view, BULK, above=300)
    assert pool_of(await client.post(CHAT, json=SEEMS_LONG)) == POOL


async def test_quota_that_is_used_up_is_asked_once_and_refused_in_the_own_pools_name(
    client: httpx.AsyncClient, services: ScriptedServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    tenant = await new_tenant(client, quotas={"requests_per_minute": 1})
    key = {"Authorization": f"Bearer {(await new_key(client, tenant))['key']}"}
    assert pool_of(await client.post(COMPLETIONS, json=completion("a"), headers=key)) == POOL
    asked: list[PoolName] = []
    enter = services.door.enter

    async def counted(pool: PoolName, *arguments: Any, **options: Any) -> Any:
        asked.append(pool)
        return await enter(pool, *arguments, **options)

    monkeypatch.setattr(services.door, "enter", counted)
    refused = await client.post(COMPLETIONS, json=completion("a" * 250), headers=key)
    assert error_of(refused, status=429)["code"] == "rate_limit_exceeded"
    assert asked == services.observer.pools == [POOL]


async def test_prompt_that_no_context_holds_is_refused_by_that_name_and_by_no_bound(
    client: httpx.AsyncClient, gateway: ScriptedGateway
) -> None:
    gateway.others.clear()
    gateway.change_view(tunables=Tunables(max_queue_tokens=600, urgent_queue_ratio=0))
    refused = await client.post(COMPLETIONS, json=completion([5] * 700))
    assert error_of(refused, status=400)["code"] == "context_length_exceeded"


async def test_what_moves_on_tells_nothing_of_the_pace_at_home(
    client: httpx.AsyncClient, services: ScriptedServices
) -> None:
    for _ in range(5):
        assert pool_of(await client.post(COMPLETIONS, json=completion("a" * 200))) == BULK
    assert not await services.redis.hexists(keys.permit_weights(POOL), "drain:requests")  # type: ignore[misc]


@pytest.fixture
def slow_bulk(gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bulk pool is predicted to be too late, and refuses by that."""
    pace_of = Predictor.pace_of

    def slow_in_bulk(self: Predictor, pool: PoolName) -> PoolPace:
        slow = {"prompt_tokens_per_second": 10.0, "sequences_per_second": 0.1}
        busy = {"num_waiting": 10, "num_waiting_tokens": 1000, "num_free_places": 0}
        pace = pace_of(self, pool)
        return dataclasses.replace(pace, **slow, **busy) if pool == BULK else pace

    monkeypatch.setattr(Predictor, "pace_of", slow_in_bulk)
    change_bulk(gateway, tunables=Tunables(early_reject="on", slo_ttft_ms=1))


# --- accounts that changed ---


async def _moved_tenant(client: httpx.AsyncClient) -> tuple[str, dict[str, str]]:
    """The path of a tenant of `bulk`, whose key this process remembers, and the key's header."""
    for name in (BULK, SPARE):
        await in_thread(ensure_pool, name, MODEL)
    tenant = await new_tenant(client, pools=["bulk"])
    return f"{TENANTS}/{tenant['id']}", {"Authorization": f"Bearer {(await new_key(client, tenant))['key']}"}


@pytest.mark.parametrize(("endpoint", "body"), [(COMPLETIONS, completion("a")), (EMBEDDINGS, EMBEDDING)])
async def test_tenant_that_is_moved_off_a_dead_pool_is_served_at_once(
    client: httpx.AsyncClient, gateway: ScriptedGateway, endpoint: str, body: dict[str, Any]
) -> None:
    change_bulk(gateway, num_engines=0)
    path, key = await _moved_tenant(client)
    error = error_of(await client.post(endpoint, json=body, headers=key), status=503)
    assert "bulk" in error["message"]
    assert (await client.patch(path, json={"pools": ["spare"]})).status_code == 200
    assert pool_of(await client.post(endpoint, json=body, headers=key)) == SPARE


@pytest.mark.parametrize(("endpoint", "body"), [(COMPLETIONS, completion("a")), (EMBEDDINGS, EMBEDDING)])
async def test_pool_that_a_tenant_was_given_may_be_named_at_once(
    client: httpx.AsyncClient, endpoint: str, body: dict[str, Any]
) -> None:
    path, key = await _moved_tenant(client)
    assert pool_of(await client.post(endpoint, json=body, headers=key)) == BULK
    assert (await client.patch(path, json={"pools": ["bulk", "spare"]})).status_code == 200
    assert pool_of(await client.post(endpoint, json={**body, "pool": "spare"}, headers=key)) == SPARE


async def test_tenant_that_is_moved_off_a_slow_pool_is_served_at_once(
    client: httpx.AsyncClient, slow_bulk: None
) -> None:
    path, key = await _moved_tenant(client)
    refused = await client.post(COMPLETIONS, json=completion("a"), headers=key)
    assert error_of(refused, status=429)["code"] == "predicted_too_late"
    assert (await client.patch(path, json={"pools": ["spare"]})).status_code == 200
    assert pool_of(await client.post(COMPLETIONS, json=completion("a"), headers=key)) == SPARE


@pytest.mark.parametrize(("path", "body"), [(COMPLETIONS, {"prompt": "a"}), ("/v1/embeddings", {"input": "a"})])
async def test_pool_that_a_tenant_may_use_from_now_on_may_be_named_at_once(
    client: httpx.AsyncClient, path: str, body: dict[str, Any]
) -> None:
    tenant_path, key = await _moved_tenant(client)
    assert (await client.patch(tenant_path, json={"pools": ["bulk", "spare"]})).status_code == 200
    asked = {"model": MODEL, "pool": SPARE, **body}
    assert error_of(await client.post(path, json={**asked, "pool": POOL}, headers=key), status=400)["param"] == "pool"
    assert (await client.post(path, json=asked, headers=key)).headers["x-footplate-pool"] == SPARE


async def test_redis_out_of_reach_is_no_reason_to_read_the_account_again(
    client: httpx.AsyncClient, services: ScriptedServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pool_of(await client.post(COMPLETIONS, json=completion("a"))) == POOL
    asked: list[str] = []

    def count(name: str) -> None:
        async def fail(*_: Any, **__: Any) -> None:
            asked.append(name)
            raise RedisConnectionError("gone")

        monkeypatch.setattr(*{"door": (services.door, "_enter"), "epoch": (services.redis, "get")}[name], fail)

    count("door")
    count("epoch")
    refused = await client.post(COMPLETIONS, json=completion("a"))
    assert error_of(refused, status=503)["code"] == "unavailable"
    assert asked == ["door"]


# --- what is not left behind ---


def _wish_of(services: ScriptedServices, prompts: list[Prompt], payer: Account) -> NewRequest:
    route = find_route(services.gateway.pools(), model=MODEL)
    return dataclasses.replace(wish(services, payer, lambda: payer), prompts=prompts, route=route)


async def test_two_wrong_guesses_and_a_lost_lease_are_no_reason_to_refuse(services: ScriptedServices) -> None:
    await services.redis.set(keys.admission_epoch(), "now")
    has_lost = False

    async def tokenise(num_tokens: int, *, loses: bool = False) -> list[int]:
        nonlocal has_lost
        if loses and not has_lost:
            has_lost = True
            await passing_leases(services.redis)
        return [5] * num_tokens

    guesses = ((150, functools.partial(tokenise, 50)), (60, functools.partial(tokenise, 150)))
    prompts = [Prompt(PromptLength(1, guess, CONTEXT), tokenise) for guess, tokenise in guesses]
    prompts.append(Prompt(PromptLength(1, 60, CONTEXT), functools.partial(tokenise, 60, loses=True)))
    await start(services, _wish_of(services, prompts, account("now", tokens_per_minute=10_000)))
    assert {generation.pool for generation in services.gateway.generations} == {BULK}
    assert (await sums(services.redis))["open"] == 3


async def test_client_that_leaves_at_any_moment_of_a_move_leaves_nothing(services: ScriptedServices) -> None:
    await services.redis.set(keys.admission_epoch(), "now")
    payer = account("now", tokens_per_minute=10_000, max_concurrent_requests=10)

    async def tokenise(num_tokens: int) -> list[int]:
        await asyncio.sleep(0)
        return [5] * num_tokens

    lengths = (50, 60, 150)
    prompts = [Prompt(PromptLength(1, 30, CONTEXT), functools.partial(tokenise, length)) for length in lengths]
    num_steps, has_ended = 0, False
    while not has_ended:
        starting = asyncio.create_task(start(services, _wish_of(services, prompts, payer)))
        for _ in range(num_steps):
            await asyncio.sleep(0)
        has_ended = starting.done()
        starting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await starting
        for permit in services.gateway.permits:
            await services.door.close(permit, Spent())
        services.gateway.permits.clear()
        assert (await sums(services.redis))["open"] == 0, num_steps
        assert [await waiting(services, name) for name in (POOL, BULK)] == [0, 0], num_steps
        num_steps += 1
    assert num_steps > 10
