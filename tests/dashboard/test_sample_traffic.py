"""The button that sends sample traffic, and the card of first steps."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from serving.audit.models import AuditEvent
from serving.contracts.errors import Unavailable
from tests.dashboard.harness import POOL, Services
from tests.dashboard.tenancy import browser, page_of, session_of, submit, words

PATH = f"/console/pools/{POOL}/sample-traffic"
STEPS = "/console/first-steps/"


@dataclasses.dataclass(frozen=True)
class Playing:
    author: str
    seconds_left: float


class ScriptedTraffic:
    """Sends nothing; knows who began."""

    def __init__(self) -> None:
        self.author: str | None = None
        self.is_reachable = True

    async def start(self, pool: str, *, author: str) -> Playing | None:
        playing = await self.state(pool)
        self.author = self.author or author
        return playing

    async def stop(self, pool: str) -> bool:
        was, self.author = self.author, None
        return was is not None

    async def state(self, pool: str) -> Playing | None:
        if not self.is_reachable:
            raise Unavailable("Redis cannot be reached")
        return None if self.author is None else Playing(self.author, 12.34)


@pytest.fixture
def traffic(services: Services) -> ScriptedTraffic:
    services.sample_traffic = ScriptedTraffic()
    return services.sample_traffic  # type: ignore[no-any-return]


@pytest.fixture
async def client(application: Any, traffic: ScriptedTraffic) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(application, await session_of("operator", "olga")) as client:
        yield client


async def send(client: httpx.AsyncClient, action: str, **fields: str) -> str:
    """Press a button of the form on the page of first steps; gives what the page then says."""
    response = await submit(client, STEPS, at=PATH, action=action, **fields)
    assert response.status_code == 302
    return words(await page_of(client, STEPS))


async def test_it_is_begun_once_and_stopped_and_both_are_kept(
    client: httpx.AsyncClient, traffic: ScriptedTraffic
) -> None:
    assert (await client.get(f"{PATH}.json")).json() == {}
    assert "Sample traffic runs for half a minute" in await send(client, "start")
    assert (await client.get(f"{PATH}.json")).json() == {"author": "olga", "seconds_left": 12.3}
    assert "Sample traffic of olga runs already, for 12 more seconds" in await send(client, "start")
    assert "The sample traffic is stopped" in await send(client, "stop")
    assert "No sample traffic runs any more" in await send(client, "stop")
    traffic.is_reachable = False
    assert "Nothing was done: Redis cannot be reached" in await send(client, "start")
    assert (await client.get(f"{PATH}.json")).json() == {}
    events = [(event.action, event.actor, event.pool) async for event in AuditEvent.objects.filter(actor="olga")]
    assert events == [("sample traffic stopped", "olga", POOL), ("sample traffic sent", "olga", POOL)]


async def test_it_leads_back_where_the_button_stands_and_nowhere_else(client: httpx.AsyncClient) -> None:
    for path, leads_to in (
        ("/console/playground/?pool=default", "/console/playground/?pool=default"),
        ("https://evil.example/console/", f"/console/pools/{POOL}/"),
        ("//evil.example", f"/console/pools/{POOL}/"),
        ("/docs", f"/console/pools/{POOL}/"),
    ):
        response = await submit(client, STEPS, at=PATH, action="stop", next=path)
        assert response.headers["Location"] == leads_to


async def test_it_takes_the_permission_to_prompt(application: Any, traffic: ScriptedTraffic) -> None:
    async with browser(application, await session_of("viewer")) as client:
        assert "Send sample traffic" not in await page_of(client, STEPS)
        token = client.cookies.get("csrftoken", "")
        assert (await client.post(PATH, data={"csrfmiddlewaretoken": token})).status_code == 403
        assert (await client.get(f"{PATH}.json")).status_code == 200
        assert (await client.get("/console/pools/none/sample-traffic.json")).status_code == 404
        assert (await client.get(PATH)).status_code == 405
    assert traffic.author is None


async def test_first_steps_are_hidden_for_good_and_found_again(client: httpx.AsyncClient) -> None:
    assert "Make a key" not in await page_of(client, STEPS)  # which operators do not
    assert f"curl {client.base_url}/v1/chat/completions" in words(await page_of(client, STEPS))
    page = await page_of(client, "/console/")
    assert "first-use-heading" in page
    response = await submit(client, "/console/", at=f"{STEPS}hide")
    assert (response.status_code, response.headers["Location"]) == (302, "/console/")
    assert "first-use-heading" not in await page_of(client, "/console/")
    await submit(client, STEPS, at=f"{STEPS}hide")
    assert "first-use-heading" in await page_of(client, "/console/")
