"""What a load balancer is told, and by it `serve`: which pools can run a request."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from serving.contracts.ids import PoolName
from tests.api.conftest import ScriptedGateway, ScriptedServices


@pytest.fixture
async def anybody(application: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://localhost") as client:
        yield client


def give_pools(gateway: ScriptedGateway, **num_engines: int) -> None:
    """A pool for each name, with so many engines."""
    gateway.view, *gateway.others = [
        dataclasses.replace(gateway.view, name=PoolName(name), num_engines=number)
        for name, number in num_engines.items()
    ]


@pytest.mark.parametrize("num_engines", [{"chat": 1, "bulk": 2}, {"chat": 1}])
async def test_is_ready_without_reservation_when_every_pool_has_an_engine(
    anybody: httpx.AsyncClient, gateway: ScriptedGateway, num_engines: dict[str, int]
) -> None:
    give_pools(gateway, **num_engines)
    answer = await anybody.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ready", "reasons": []})


async def test_a_pool_without_an_engine_is_named_and_takes_no_other_out_of_rotation(
    anybody: httpx.AsyncClient, gateway: ScriptedGateway
) -> None:
    give_pools(gateway, chat=1, bulk=0)
    answer = await anybody.get("/readyz")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ready", "reasons": ["pool bulk has no engine that is ready"]}


async def test_is_not_ready_when_no_pool_has_an_engine(anybody: httpx.AsyncClient, gateway: ScriptedGateway) -> None:
    give_pools(gateway, chat=0, bulk=0)
    answer = await anybody.get("/readyz")
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    body = answer.json()
    assert body["reasons"] == ["pool chat has no engine that is ready", "pool bulk has no engine that is ready"]
    assert body["error"]["code"] == "unavailable"
    for pool in ("chat", "bulk"):
        assert pool in body["error"]["message"]


async def test_a_process_that_leaves_is_not_ready_whatever_its_pools_have(
    anybody: httpx.AsyncClient, services: ScriptedServices, gateway: ScriptedGateway
) -> None:
    give_pools(gateway, chat=1, bulk=0)
    services.drain.begin()
    answer = await anybody.get("/readyz")
    assert answer.status_code == 503
    assert answer.json()["reasons"] == ["the server is shutting down", "pool bulk has no engine that is ready"]
