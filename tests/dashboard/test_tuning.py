"""The Tuning page without scripts: presets, conflicts, guardrails, canaries, and who may do what."""

from __future__ import annotations

import re

import httpx
import pytest

from serving.audit.models import AuditEvent
from serving.contracts import keys
from serving.contracts.guardrails import GuardrailTerms
from serving.contracts.presets import PRESETS
from serving.contracts.tunables import Tunables, describe
from serving.tuning import canaries, guardrails, selectors
from serving.tuning.models import Guardrail
from serving.tuning.services import ensure_pool
from tests.dashboard.harness import POOL, Page, Services
from tests.dashboard.steering import TUNING, store, tune
from tests.dashboard.tenancy import fields_of, in_thread, page_of, submit, words
from tests.tuning.engines import beat, sent_to, write_frame

CHAT = f"{TUNING}presets/chat/"
TERMS = GuardrailTerms(metric="ttft_p95", bound=500, window_seconds=30)


async def in_force() -> tuple[int, Tunables]:
    current = await in_thread(selectors.current_tunables)(POOL)
    return current.version, current.tunables


async def test_page_has_every_lever_with_what_its_group_trades(steerer: httpx.AsyncClient) -> None:
    page = await page_of(steerer, TUNING)
    for spec in describe():
        assert f'data-lever="{spec.name}"' in page
    assert "Throughput against latency" in words(page)
    assert f"/console/live/{POOL}" in page
    assert 'aria-current="page">Tuning</a>' in page


async def test_first_pools_page_is_where_the_navigation_leads_without_a_pool(steerer: httpx.AsyncClient) -> None:
    response = await steerer.get("/console/tuning/")
    assert response.headers["Location"] == TUNING


@pytest.mark.parametrize("path", ["", "standing/", "conflicts.json", "presets/chat/"])
async def test_unknown_pools_are_not_found(steerer: httpx.AsyncClient, path: str) -> None:
    for name in ("nowhere", "no%00where"):
        assert (await steerer.get(f"/console/pools/{name}/tuning/{path}")).status_code == 404


async def test_presets_show_what_they_would_change_and_which_is_in_force(
    steerer: httpx.AsyncClient, services: Services
) -> None:
    text = words(await page_of(steerer, TUNING))
    assert "mixed in force" in text
    assert "max_batch_tokens 192 → 128 tokens" in text
    await tune(services, **PRESETS["chat"].changes)
    text = words(await page_of(steerer, TUNING))
    assert "chat in force" in text
    assert "max_batch_tokens 128 → 192 tokens" in text


async def test_preset_is_stored_with_its_reason_and_guardrail(steerer: httpx.AsyncClient) -> None:
    response = await submit(steerer, CHAT, guardrail="on", metric="error_ratio", bound="0.05", window="20")
    assert (await AuditEvent.objects.aget(action="tunables changed")).address == "127.0.0.1"
    assert (response.status_code, response.headers["Location"]) == (302, TUNING)
    assert await in_force() == (2, Tunables().changed(PRESETS["chat"].changes))
    page = words(await page_of(steerer, TUNING))
    assert "Preset chat: version 2 is stored." in page
    assert f"preset chat: {PRESETS['chat'].reason}" in page
    assert (
        "Guardrail rolls back at Failed requests above 5 % for 20 s, measured over all engines, watched until" in page
    )


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ({"guardrail": "on", "bound": ""}, "guardrail bound must be a number"),
        ({"guardrail": "on", "bound": "1e999"}, "guardrail bound must be a number"),
        ({"guardrail": "on", "bound": "500", "window": "1"}, "guardrail window must be a number from 5 to 3600"),
        ({"guardrail": "on", "metric": "no\0thing", "bound": "5"}, "guardrail metric must be one of ttft_p95"),
        ({"canary": "on"}, "canary must be off: it needs two engines of the pool that take work, and there are 0"),
        ({"reason": "no\0thing"}, "reason must be a text of at most 500 characters"),
        ({"based_on": "x"}, "based_on must be the number of the version in force"),
    ],
)
async def test_what_is_typed_wrongly_is_said_and_kept(
    steerer: httpx.AsyncClient, typed: dict[str, str], told: str
) -> None:
    response = await submit(steerer, CHAT, **{"watch": "900", **typed})
    assert response.status_code == 400
    assert told in words(response.text)
    assert fields_of(response.text)["watch"] == "900"
    assert (await in_force())[0] == 1


async def test_of_two_who_apply_a_preset_the_later_sees_what_came_first(
    steerer: httpx.AsyncClient, services: Services
) -> None:
    fields = fields_of(await page_of(steerer, CHAT))
    await tune(services, max_running=5)
    response = await steerer.post(CHAT, data=fields)
    assert response.status_code == 409
    assert "Version 2 by ben" in words(response.text)
    assert "max_running 32 → 5 sequences" in words(response.text)
    assert (await steerer.post(CHAT, data=fields_of(response.text))).status_code == 302
    assert (await in_force())[0] == 3


async def test_values_that_fight_are_told_before_and_after(steerer: httpx.AsyncClient, services: Services) -> None:
    beat(services.blocking_redis, "engine-1")
    asked = await steerer.get(f"{TUNING}conflicts.json", params={"batch_window_ms": "5000", "slo_ttft_ms": "300"})
    (conflict,) = asked.json()["conflicts"]
    assert conflict["fields"] == ["batch_window_ms", "slo_ttft_ms"]
    small = await steerer.get(f"{TUNING}conflicts.json", params={"kv_limit_ratio": "0.1", "long_prompt_pool": ""})
    assert [found["fields"] for found in small.json()["conflicts"]] == [
        ["max_running", "kv_limit_ratio"],
        ["kv_limit_ratio"],
    ]
    await tune(services, batch_window_ms=5000, slo_ttft_ms=300)
    assert conflict["message"] in words(await page_of(steerer, TUNING))


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ({"max_running": "many"}, "max_running"),
        ({"max_running": "nan"}, "max_running"),
        ({"max_running": "1e999"}, "max_running"),
        ({"order": "no\0thing"}, "order"),
        ({"luck": "1"}, "luck"),
    ],
)
async def test_values_that_are_none_are_refused_by_name(
    steerer: httpx.AsyncClient, query: dict[str, str], param: str
) -> None:
    response = await steerer.get(f"{TUNING}conflicts.json", params=query)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


async def test_canary_is_shown_with_its_engine_and_taken_to_all(steerer: httpx.AsyncClient, services: Services) -> None:
    redis = services.blocking_redis
    _, second = beat(redis, "engine-1", "engine-2", steps_total=100, step_seconds_total=2.0)
    assert "Canary: on one of 2 engines first" in words(await page_of(steerer, CHAT))
    await store(services, {"max_running": 8}, canary=True)
    beat(redis, "engine-1", steps_total=300, step_seconds_total=4.0, tunables_version=2)
    page = await page_of(steerer, TUNING)
    assert "Version 2 is being tried" in words(page)
    assert re.search(r"on engine-1 since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d; version 1 is in force", words(page))
    assert "version 1 is in force" in words(page)
    assert "canary engine-1 2 10 ms" in words(page)
    assert "/roll-back" not in page
    response = await steerer.post(f"{TUNING}canary/2/all", data=fields_of(page, action=f"{TUNING}canary/2/all"))
    assert response.headers["Location"] == TUNING
    assert (await in_force())[0] == 2
    assert [message.version for message in sent_to(redis, second) if hasattr(message, "version")] == [2]
    assert "Version 2 runs on all engines." in words(await page_of(steerer, TUNING))


async def test_canary_is_told_beside_the_other_engines_and_from_what_requests(
    steerer: httpx.AsyncClient, services: Services
) -> None:
    redis = services.blocking_redis
    beat(redis, "engine-1", "engine-2")
    await store(services, {"max_running": 8}, canary=True, canary_engine="engine-2", guardrail=TERMS)
    assert "is not told yet: the monitor measures it" in words(await page_of(steerer, f"{TUNING}standing/"))
    write_frame(redis, version=2, engine_id="engine-2", tried=40, others=12)
    page = words(await page_of(steerer, f"{TUNING}standing/"))
    assert "Too few requests to tell yet. 40 requests of the canary, 12 of the other engines." in page
    write_frame(redis, version=2, engine_id="engine-2", tried=40, others=50)
    page = words(await page_of(steerer, TUNING))
    assert "TTFT 50 → 40 200 ms → to 100 ms ↓ 50 % better" in page
    assert "too few to tell" in page
    assert re.search(r"above 500 ms for 30 s, measured on engine-2 alone, watched until \d{4}-\d\d-\d\d ", page)
    await in_thread(canaries.take_to_all)(POOL, 2, reason="", author="ann", redis=redis)
    assert "for 30 s, measured over all engines, watched until" in words(await page_of(steerer, TUNING))


async def test_canary_whose_engine_is_gone_is_shown_and_may_be_taken_back(
    steerer: httpx.AsyncClient, services: Services
) -> None:
    redis = services.blocking_redis
    gone, _ = beat(redis, "engine-1", "engine-2")
    await store(services, {"max_running": 8}, canary=True)
    write_frame(redis, version=2, engine_id="engine-1")
    redis.delete(keys.heartbeat(gone.engine_id))
    beat(redis, "engine-2", preemptions_total=3)
    page = await page_of(steerer, TUNING)
    assert "Its engine, engine-1, does not live." in words(page)
    assert fields_of(page, action=f"{TUNING}canary/2/back")


async def test_engine_that_tries_a_preset_is_chosen_in_the_form(steerer: httpx.AsyncClient, services: Services) -> None:
    beat(services.blocking_redis, "engine-2", "engine-1")
    page = await page_of(steerer, CHAT)
    offered = re.findall(r"<option>(engine-\d)</option>", page)
    assert offered == ["engine-1", "engine-2"]
    refused = await submit(steerer, CHAT, canary="on", canary_engine="engine-9")
    assert refused.status_code == 400
    assert "canary engine must be the id of an engine that takes work: engine-1, engine-2" in words(refused.text)
    await submit(steerer, CHAT, canary="on", canary_engine="engine-2")
    trial = await in_thread(canaries.trial_of)(POOL)
    assert trial is not None
    assert trial.engine_id == "engine-2"


async def test_canary_is_taken_back_once(steerer: httpx.AsyncClient, services: Services) -> None:
    beat(services.blocking_redis, "engine-1", "engine-2")
    await store(services, {"max_running": 8}, canary=True)
    page = await page_of(steerer, TUNING)
    form = fields_of(page, action=f"{TUNING}canary/2/back")
    for told in (
        "Version 2 is taken back by version 3.",
        "Nothing was changed: version 2 is not being tried any more: version 3 came.",
    ):
        await steerer.post(f"{TUNING}canary/2/back", data=form)
        assert told in words(await page_of(steerer, TUNING))
    assert await in_force() == (3, Tunables())
    assert "It was tried on one engine first, and taken back by ann." in words(await page_of(steerer, TUNING))
    assert (await steerer.post(f"{TUNING}canary/2/sideways", data=form)).status_code == 404
    assert (await steerer.get(f"{TUNING}canary/2/all")).headers["Location"] == TUNING


async def test_canary_whose_engine_is_gone_says_so(steerer: httpx.AsyncClient, services: Services) -> None:
    beat(services.blocking_redis, "engine-1", "engine-2")
    await store(services, {"max_running": 8}, canary=True)
    services.blocking_redis.flushall()
    assert "Its engine, engine-1, does not live." in words(await page_of(steerer, f"{TUNING}standing/"))


async def test_roll_back_while_a_version_is_tried_is_refused_with_the_way_out(
    steerer: httpx.AsyncClient, services: Services
) -> None:
    await tune(services, max_running=9)
    form = fields_of(await page_of(steerer, f"/console/pools/{POOL}/versions/"))
    beat(services.blocking_redis, "engine-1", "engine-2")
    await store(services, {"max_running": 8}, canary=True)
    response = await steerer.post(f"/console/pools/{POOL}/versions/1/roll-back", data=form)
    assert response.status_code == 409
    assert "version 3 is being tried on one engine: take it to all engines or back first" in words(response.text)


async def test_what_became_of_a_guardrail_stands_in_the_history(steerer: httpx.AsyncClient, services: Services) -> None:
    redis = services.blocking_redis
    await store(services, {"max_running": 8}, guardrail=TERMS)
    (watched,) = await in_thread(guardrails.watched)()
    await in_thread(guardrails.note_missed_since)(watched.id, 1_000_000_000.0)
    assert "missed since 01:46:40" in words(await page_of(steerer, TUNING))
    await in_thread(guardrails.take_back)(watched.id, value=812.0, redis=redis)
    page = words(await page_of(steerer, TUNING))
    assert "Guardrail missed: version 2 rolled back: TTFT p95 was 812 ms, above 500 ms for 30 s" in page
    assert "3 in force" in page
    assert "guardrail" in page
    await store(services, {"max_running": 7}, guardrail=TERMS)
    await in_thread(Guardrail.objects.filter(state="watching").update)(state="passed")
    one = words(await page_of(steerer, f"/console/pools/{POOL}/versions/4/"))
    assert "Guardrail passed: not once TTFT p95 above 500 ms for 30 s" in one


async def test_a_guardrail_is_called_off_once_and_the_version_stays(
    steerer: httpx.AsyncClient, services: Services
) -> None:
    await store(services, {"max_running": 8}, guardrail=TERMS)
    path = f"{TUNING}guardrails/2/call-off"
    assert (await steerer.get(path)).headers["Location"] == TUNING
    form = fields_of(await page_of(steerer, TUNING), action=path)
    for told in (
        "Version 2 is watched no longer, and stays.",
        "Nothing was changed: version 2 is watched no longer: its guardrail was called off.",
    ):
        await steerer.post(path, data=form)
        assert told in words(await page_of(steerer, TUNING))
    page = await page_of(steerer, TUNING)
    assert "Guardrail called off by ann" in words(page)
    assert path not in page
    assert (await in_force())[0] == 2


async def test_the_part_that_is_fetched_anew_tells_what_fights_by_now(
    steerer: httpx.AsyncClient, services: Services
) -> None:
    assert "fight one another" not in await page_of(steerer, f"{TUNING}standing/")
    await tune(services, batch_window_ms=900, slo_ttft_ms=200)
    assert "Values in force that fight one another" in words(await page_of(steerer, f"{TUNING}standing/"))


async def test_viewer_sees_all_and_changes_nothing(viewer: httpx.AsyncClient, services: Services) -> None:
    beat(services.blocking_redis, "engine-1", "engine-2")
    await tune(services, max_running=9)
    await store(services, {"max_running": 8}, canary=True)
    page = await page_of(viewer, TUNING)
    assert "You may watch, but not change tunables." in words(page)
    assert "/roll-back" not in page
    assert "canary/3/" not in page
    assert "Apply preset" not in words(await page_of(viewer, CHAT))
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    assert token is not None
    form = {"csrfmiddlewaretoken": token[1], "based_on": "2"}
    for path in (
        CHAT,
        f"{TUNING}canary/3/all",
        f"{TUNING}guardrails/3/call-off",
        f"/console/pools/{POOL}/versions/1/roll-back",
    ):
        assert (await viewer.post(path, data=form)).status_code == 403
    assert (await in_force())[0] == 2


async def test_change_over_the_socket_carries_its_guardrail_and_canary(page: Page, services: Services) -> None:
    beat(services.blocking_redis, "engine-1", "engine-2")
    await page.open()
    wrong = await page.ask(
        type="change", id=1, changes={"max_running": 8}, based_on=1, guardrail={"metric": "luck", "bound": 1}
    )
    assert (wrong["type"], wrong["code"]) == ("refused", "invalid_value")
    guardrail = {"metric": "itl_p95", "bound": 80, "window_seconds": 20, "watch_seconds": 300}
    stored = await page.ask(
        type="change",
        id=2,
        changes={"max_running": 8},
        based_on=1,
        guardrail=guardrail,
        canary=True,
        canary_engine="engine-2",
    )
    assert stored["version"]["number"] == 2
    (watched,) = await in_thread(guardrails.watched)()
    assert watched.condition.describe() == "ITL p95 above 80 ms for 20 s"
    trial = await in_thread(canaries.trial_of)(POOL)
    assert trial is not None
    assert trial.engine_id == "engine-2"
    late = await page.ask(type="change", id=3, changes={"max_running": 7}, based_on=2)
    assert (late["code"], late["newer"]) == ("canary_running", [])


async def test_another_pool_is_led_to(steerer: httpx.AsyncClient) -> None:
    await in_thread(ensure_pool)("bulk", "a-model")
    assert "/console/pools/bulk/tuning/" in await page_of(steerer, TUNING)
