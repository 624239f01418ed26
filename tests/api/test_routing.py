"""Which pool runs a request: by model, tenant, its own wish and its length."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from serving.admission.accounts import Account
from serving.admission.permits import Weight
from serving.api.routing import find_route
from serving.contracts import keys
from serving.contracts.errors import InvalidValue, ModelNotFound
from serving.contracts.tunables import Tunables
from serving.gateway.pools import PoolView
from serving.gateway.text.tokenizer import TextModel
from serving.threads import in_thread
from serving.tuning.services import ensure_pool
from tests.api.conftest import CONTEXT, MODEL, POOL, ScriptedGateway, ScriptedServices
from tests.api.envelope import error_of
from tests.api.pools import BULK, SPARE, beside, completion, sends_long_to, waiting
from tests.api.tenancy import TENANTS, new_key, new_tenant
from tests.api.test_starting import start, wish

PATH = "/v1/completions"


@pytest.fixture
def view(text_model: TextModel) -> PoolView:
    return PoolView(name=POOL, text_model=text_model, tunables=Tunables(), max_model_len=CONTEXT, num_engines=1)


# --- the rules ---


@pytest.mark.parametrize(
    ("allowed", "engines", "expected"),
    [
        (None, (1, 1, 1), "default"),
        (None, (0, 1, 1), "bulk"),
        (None, (0, 0, 0), "default"),
        (["spare", "bulk"], (1, 1, 1), "spare"),
        (["spare", "bulk"], (1, 1, 0), "bulk"),
        (["spare", "bulk"], (1, 0, 0), "spare"),
        (["gone", "bulk"], (1, 1, 1), "bulk"),
    ],
)
def test_tenants_first_pool_with_an_engine_serves(
    view: PoolView, allowed: Sequence[str] | None, engines: tuple[int, ...], expected: str
) -> None:
    names = ("default", "bulk", "spare")
    pools = [beside(view, name, num_engines=count) for name, count in zip(names, engines, strict=True)]
    assert find_route(pools, model=MODEL, allowed=allowed).home.name == expected


@pytest.mark.parametrize("allowed", [[], ["gone"], ["other"]])
def test_model_that_no_pool_may_serve_does_not_exist(view: PoolView, text_model: TextModel, allowed: list[str]) -> None:
    other = beside(view, "other", text_model=dataclasses.replace(text_model, name="another"))
    with pytest.raises(ModelNotFound):
        find_route([view, other], model=MODEL, allowed=allowed)
    with pytest.raises(ModelNotFound):
        find_route([view, other], model="none")
    assert find_route([view, other], model="another").home is other


def test_pool_asked_for_by_name_takes_the_request_whatever_its_length_and_state(view: PoolView) -> None:
    pools = [sends_long_to(view, "bulk", above=1), beside(view, "bulk", num_engines=0)]
    assert find_route(pools, model=MODEL, named="bulk").pool_for(1).name == "bulk"
    assert find_route(pools, model=MODEL, named="default").pool_for(500).name == "default"


@pytest.mark.parametrize("named", ["spare", "none", "Bulk", "other"])
def test_pool_that_may_not_be_asked_for_is_refused_with_those_that_may(
    view: PoolView, text_model: TextModel, named: str
) -> None:
    other = beside(view, "other", text_model=dataclasses.replace(text_model, name="another"))
    pools = [view, beside(view, "bulk"), beside(view, "spare"), other]
    with pytest.raises(InvalidValue, match="default, bulk") as caught:
        find_route(pools, model=MODEL, allowed=["default", "bulk"], named=named)
    assert caught.value.param == "pool"


@pytest.mark.parametrize(("num_tokens", "expected"), [(1, "default"), (100, "default"), (101, "bulk"), (9999, "bulk")])
def test_prompts_longer_than_the_bound_go_to_the_pool_for_them(view: PoolView, num_tokens: int, expected: str) -> None:
    pools = [sends_long_to(view, "bulk", above=100), beside(view, "bulk")]
    assert find_route(pools, model=MODEL).pool_for(num_tokens).name == expected


@pytest.mark.parametrize(
    ("wanted", "allowed", "num_engines"),
    [("", None, 1), ("none", None, 1), ("default", None, 1), ("bulk", ["default"], 1), ("bulk", None, 0)],
)
def test_long_prompts_stay_where_no_other_pool_can_take_them(
    view: PoolView, wanted: str, allowed: list[str] | None, num_engines: int
) -> None:
    pools = [sends_long_to(view, wanted, above=100), beside(view, "bulk", num_engines=num_engines)]
    assert find_route(pools, model=MODEL, allowed=allowed).pool_for(500).name == "default"


def test_a_route_is_as_long_as_its_longest_pool(view: PoolView) -> None:
    home = dataclasses.replace(sends_long_to(view, "bulk", above=100), max_model_len=128)
    assert find_route([home, beside(view, "bulk")], model=MODEL).max_model_len == CONTEXT
    assert find_route([home], model=MODEL).max_model_len == 128


# --- through the door ---


@pytest.fixture
def pools(gateway: ScriptedGateway) -> list[PoolView]:
    """Two more pools; the first one's long prompts, of more than 100 tokens, go to `bulk`."""
    gateway.others = [beside(gateway.view, BULK), beside(gateway.view, SPARE)]
    gateway.view = sends_long_to(gateway.view, BULK, above=100)
    return [gateway.view, *gateway.others]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ([5] * 100, "default"),
        ([5] * 101, "bulk"),
        # Taken for 66 and 33 tokens before they are tokenised, a byte being a token here.
        ("a" * 200, "bulk"),
        ("a" * 100, "default"),
        (["a", "b" * 200], "bulk"),
    ],
)
async def test_long_prompts_run_in_the_pool_for_them(
    client: httpx.AsyncClient, services: ScriptedServices, pools: list[PoolView], prompt: Any, expected: str
) -> None:
    response = await client.post(PATH, json=completion(prompt))
    assert response.status_code == 200, response.text
    assert response.headers["x-footplate-pool"] == expected
    assert {generation.pool for generation in services.gateway.generations} == {expected}
    assert {permit.pool for permit in services.gateway.permits} == {expected}
    # What it had entered elsewhere by its estimate, it holds no more.
    assert {name: await waiting(services, name) for name in ("default", "bulk")} == {
        "default": 0,
        "bulk": 0,
        expected: len(services.gateway.permits),
    }


async def test_prompts_shorter_than_they_seemed_stay_at_home(
    client: httpx.AsyncClient, services: ScriptedServices, pools: list[PoolView]
) -> None:
    """Taken for 333 tokens, and really 291: a tag around each of many short messages."""
    services.gateway.view = sends_long_to(services.gateway.view, BULK, above=300)
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a"}] * 40, "max_tokens": 4, "stream": True}
    response = await client.post("/v1/chat/completions", json=body)
    assert len(services.gateway.generations[0].prompt_ids) == 291
    assert response.headers["x-footplate-pool"] == POOL
    assert (await waiting(services, BULK), await waiting(services, POOL)) == (0, 1)


async def test_request_may_name_its_pool(client: httpx.AsyncClient, pools: list[PoolView]) -> None:
    for name in (POOL, BULK, SPARE):
        for stream in (False, True):
            response = await client.post(PATH, json=completion([5] * 200, pool=name, stream=stream))
            assert response.headers["x-footplate-pool"] == name
    error = error_of(await client.post(PATH, json=completion("a", pool="none")), status=400)
    assert error["param"] == "pool"
    assert "default, bulk, spare" in error["message"]
    for value in ("", 5, ["bulk"], "x" * 65):
        assert error_of(await client.post(PATH, json=completion("a", pool=value)), status=400)["param"] == "pool"
    assert (await client.post(PATH, json=completion("a", pool=None))).status_code == 200


async def test_each_pool_has_bounds_and_books_of_its_own(
    client: httpx.AsyncClient, services: ScriptedServices, pools: list[PoolView]
) -> None:
    full = Tunables(max_queue_requests=1, urgent_queue_ratio=0)
    services.gateway.others[0] = dataclasses.replace(services.gateway.others[0], tunables=full)
    await services.door.enter(BULK, [Weight(1, 1)], tunables=full)
    refused = await client.post(PATH, json=completion([5] * 200))
    assert error_of(refused, status=429)["code"] == "queue_full"
    assert (services.observer.outcomes, services.observer.pools) == (["refused:queue_full"], [BULK])
    assert (await client.post(PATH, json=completion([5] * 10))).status_code == 200


async def test_prompt_that_only_the_other_pool_can_hold_is_served_there(
    client: httpx.AsyncClient, services: ScriptedServices, pools: list[PoolView]
) -> None:
    services.gateway.change_view(max_model_len=128)
    assert (await client.post(PATH, json=completion([5] * 300))).headers["x-footplate-pool"] == BULK
    too_long = await client.post(PATH, json=completion([5] * 300, pool=POOL))
    assert error_of(too_long, status=400)["code"] == "context_length_exceeded"
    assert (await client.get("/v1/models")).json()["data"][0]["max_model_len"] == CONTEXT


async def test_pool_without_engine_is_passed_over(
    client: httpx.AsyncClient, services: ScriptedServices, pools: list[PoolView]
) -> None:
    services.gateway.change_view(num_engines=0)
    assert (await client.post(PATH, json=completion("a"))).headers["x-footplate-pool"] == BULK
    error = error_of(await client.post(PATH, json=completion("a", pool=POOL)), status=503)
    assert error["code"] == "unavailable"


async def test_tenant_uses_its_pools_alone_and_a_change_counts_at_once(
    client: httpx.AsyncClient, services: ScriptedServices, pools: list[PoolView]
) -> None:
    for name in (BULK, SPARE):
        await in_thread(ensure_pool, name, MODEL)
    tenant = await new_tenant(client, pools=["spare", "default"])
    key = {"Authorization": f"Bearer {(await new_key(client, tenant))['key']}"}
    assert (await client.post(PATH, json=completion("a"), headers=key)).headers["x-footplate-pool"] == SPARE
    # Its long prompts go by the rule of the pool that they would run in, and not to one that it may not use.
    assert (await client.post(PATH, json=completion([5] * 200), headers=key)).headers["x-footplate-pool"] == SPARE
    refused = await client.post(PATH, json=completion("a", pool=BULK), headers=key)
    assert "spare, default" in error_of(refused, status=400)["message"]
    changed = await client.patch(f"{TENANTS}/{tenant['id']}", json={"pools": ["bulk"]})
    assert changed.status_code == 200, changed.text
    assert (await client.post(PATH, json=completion("a"), headers=key)).headers["x-footplate-pool"] == BULK
    services.gateway.others.pop(0)
    assert error_of(await client.post(PATH, json=completion("a"), headers=key), status=404)["code"] == "model_not_found"
    assert (await client.get("/v1/models", headers=key)).json()["data"] == []
    await client.patch(f"{TENANTS}/{tenant['id']}", json={"pools": None})
    assert (await client.post(PATH, json=completion("a", pool=SPARE), headers=key)).status_code == 200


async def test_request_that_entered_on_an_old_account_goes_where_the_new_one_says(
    services: ScriptedServices, pools: list[PoolView]
) -> None:
    new = Account(epoch="new", pools=("spare",))
    await services.redis.set(keys.admission_epoch(), "new")
    request = wish(services, Account(epoch="old"), lambda: new)
    route_for = lambda account: find_route(services.gateway.pools(), model=MODEL, allowed=account.pools)  # noqa: E731
    await start(services, dataclasses.replace(request, route_for=route_for))
    assert [generation.pool for generation in services.gateway.generations] == [SPARE]
