"""Thousands of hostile bodies: each is answered properly or refused in the envelope, and none leaves a trace."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving.contracts import keys
from serving.gateway.text.chat_template import ChatTemplate
from tests.api.conftest import MODEL, POOL, ScriptedGateway, ScriptedServices
from tests.api.envelope import error_of
from tests.api.telling import let_tell
from tests.api.test_tools import TEMPLATES
from tests.hostile import BODIES, Attack, make_attacks

REFUSALS = {400, 404, 408, 413, 415, 429}


@pytest.fixture(autouse=True)
def telling_model_with_tools(services: ScriptedServices, gateway: ScriptedGateway, tmp_path: Path) -> None:
    let_tell(gateway)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": TEMPLATES["hermes"]}))
    services.chat_templates[MODEL] = ChatTemplate.load(tmp_path)


async def attack(client: httpx.AsyncClient, services: ScriptedServices, attacks: list[Attack]) -> Counter[int]:
    """Send them all; returns how often each status came."""
    statuses: Counter[int] = Counter()
    for each in attacks:
        headers = [(b"content-type", each.content_type.encode("latin-1"))]
        answer = await client.post(each.path, content=each.content, headers=headers)
        statuses[answer.status_code] += 1
        if answer.status_code == 200:
            check_success(answer)
        else:
            assert answer.status_code in REFUSALS, (each.path, each.content[:2000], answer.text)
            error_of(answer, status=answer.status_code)
        await give_back_permits(services)
    return statuses


async def give_back_permits(services: ScriptedServices) -> None:
    """As a gateway with engines does."""
    while services.gateway.permits:
        await services.door.release(services.gateway.permits.pop())


def check_success(answer: httpx.Response) -> None:
    if not answer.headers["content-type"].startswith("text/event-stream"):
        json.loads(answer.content, parse_constant=pytest.fail)
        return
    *events, done, rest = answer.text.split("\n\n")
    assert (done, rest) == ("data: [DONE]", "")
    assert all("error" not in json.loads(event.removeprefix("data: ")) for event in events)


async def check_all_is_well(client: httpx.AsyncClient, services: ScriptedServices, gateway: ScriptedGateway) -> None:
    """A good request is answered, nothing runs, and no place in the queue is taken."""
    answer = await client.post("/v1/completions", json={"model": MODEL, "prompt": "Hi"})
    assert answer.json()["choices"][0]["text"] == "a€"
    assert gateway.num_closed >= len(gateway.streams)
    await give_back_permits(services)
    assert int(await services.redis.hget(keys.permit_weights(POOL), "total:requests") or 0) == 0
    assert not any(outcome.startswith("failed") for outcome in services.observer.outcomes)


@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_what_attacks_are_made_of_is_answered(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> None:
    answer = await client.post(path, json={"model": MODEL, **body})
    assert answer.status_code == 200, answer.text
    check_success(answer)


async def test_hostile_bodies_are_refused_or_answered_and_leave_nothing_behind(
    client: httpx.AsyncClient, services: ScriptedServices, gateway: ScriptedGateway
) -> None:
    statuses = await attack(client, services, make_attacks(5, 300, model=MODEL))
    assert statuses[200] > 20  # some of what is odd is harmless, or else too little would be reached
    assert statuses[400] > 100
    await check_all_is_well(client, services, gateway)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
async def test_ten_thousand_hostile_bodies_are_refused_or_answered(
    client: httpx.AsyncClient, services: ScriptedServices, gateway: ScriptedGateway, seed: int
) -> None:
    await attack(client, services, make_attacks(100 + seed, 1000, model=MODEL))
    await check_all_is_well(client, services, gateway)


def test_attacks_are_a_function_of_their_seed() -> None:
    def made(seed: int) -> list[Any]:
        return make_attacks(seed, 50, model=MODEL)

    assert made(1) == made(1) != made(2)
