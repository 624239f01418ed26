"""The Fleet pages: engines and processes as they tell of themselves, and what an engine can be told."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from channels.db import database_sync_to_async

from serving.audit.models import AuditEvent
from serving.contracts import keys
from serving.contracts.ids import PoolName
from serving.contracts.messages import (
    AnnouncedTunables,
    Drain,
    EngineSnapshot,
    Restart,
    Resume,
    decode_control,
    encode,
)
from serving.contracts.tunables import Tunables
from serving.telemetry.processes import ProcessBeacon
from serving.telemetry.recent_logs import LogLine, RecentLogs, write_lines
from serving.tuning.services import ensure_pool
from tests.dashboard.harness import POOL, Services
from tests.dashboard.tenancy import browser, page_of, session_of, submit, words
from tests.telemetry.conftest import snapshot

FLEET = "/console/fleet/"
LOG = f"{FLEET}processes/e1/"
SECRET = "s" * 43
Beat = Callable[..., EngineSnapshot]


def act_path(act: str, engine_id: str = "e1") -> str:
    return f"{FLEET}engines/{engine_id}/{act}/"


@pytest.fixture
def beat(services: Services, pool: str) -> Beat:
    """Lets an engine's heart beat once."""

    def once(engine_id: str = "e1", *, in_pool: PoolName = POOL, **facts: Any) -> EngineSnapshot:
        seen = snapshot(engine_id, pool=in_pool, **{"name": f"host:{in_pool}", **facts})
        redis = services.blocking_redis
        redis.set(keys.heartbeat(seen.engine_id), encode(seen))
        redis.zadd(keys.engines(in_pool), {engine_id: redis.time()[0]})
        return seen

    return once


@pytest.fixture
async def operator_browser(application: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(application, await session_of("operator", "olaf")) as client:
        yield client


def tell_of(services: Services, process_id: str, **facts: Any) -> None:
    given: dict[str, Any] = {"kind": "web", "name": "web", "restarts": None, "logs": RecentLogs(), **facts}
    has_ended = given.pop("has_ended", False)
    ProcessBeacon(services.blocking_redis, process_id=process_id, **given).beat(has_ended=has_ended)


def told(services: Services, engine_id: str = "e1") -> list[Any]:
    entries = services.blocking_redis.xrange(keys.control(engine_id))  # type: ignore[arg-type]
    return [decode_control(fields[keys.FIELD]) for _, fields in entries]


async def audit() -> list[tuple[str, str, str, str, str]]:
    def read() -> list[Any]:
        found = AuditEvent.objects.filter(subject_kind="engine").order_by("pk")
        assert {event.address for event in found} <= {"127.0.0.1"}
        return list(found.values_list("action", "actor", "subject", "pool", "reason"))

    return await database_sync_to_async(read)()


def rows_of(page: str, key: str) -> list[str]:
    return [words(row) for row in re.findall(rf'<tr data-key="{key}".*?</tr>', page, re.DOTALL)]


async def test_engines_and_processes_are_shown_as_they_tell_of_themselves(
    operator_browser: httpx.AsyncClient, services: Services, beat: Beat
) -> None:
    announced = AnnouncedTunables(7, Tunables())
    services.blocking_redis.set(keys.announced_tunables(POOL), encode(announced))
    beat("e1", tunables_version=6, num_running=3, num_waiting=12, kv_blocks_used=25, kv_blocks_cached=10, backend="cpu")
    beat("e2", tunables_version=7, state="drained")
    tell_of(services, "e1", kind="engine", name="host:default", restarts=4)
    tell_of(services, "web-1", doing=lambda: "2 requests in flight")
    tell_of(services, "jobs-1", kind="jobs", name="jobs", has_ended=True)
    page = await page_of(operator_browser, FLEET)
    (first, also) = rows_of(page, "e1")
    (second,) = rows_of(page, "e2")
    assert "ready cpu · float32 cpu backend 25% in use, 10% cached 3 12 busy 0% processor" in first
    assert "MiB version 6, not 7 yet" in first
    assert re.search(r"0\.1\.0|\d+\.\d+\.\d+", first)
    assert first.endswith("4 Drain… engine host:default Restart… engine host:default")
    assert "engine up" in also
    assert "drained" in second
    assert "version 7 –" in second
    assert second.endswith("– Resume… engine host:default Restart… engine host:default")
    assert "2 engines, 1 taking work" in words(page)
    (web,) = rows_of(page, "web-1")
    assert re.search(r"2 requests in flight – \d s ago$", web)
    gone = page[page.index("Gone within the last hour") :]
    assert "jobs" in words(gone)
    assert "ended" in words(gone)


@pytest.mark.parametrize(
    ("device", "told"),
    [
        ({}, "busy 0% 0 MiB version 1"),
        ({"accelerator_ratio": 0.0}, "accelerator 0% "),
        (
            {
                "accelerator_ratio": 0.83,
                "accelerator_power_watts": 612.3,
                "accelerator_power_limit_watts": 700.0,
                "accelerator_celsius": 64,
                "accelerator_slowed_by": ("power", "heat"),
                "accelerator_memory_bytes": 70 * 2**30,
                "accelerator_memory_total_bytes": 140 * 2**30,
            },
            "accelerator 83% 612 of 700 W, 64 °C slowed by power and heat 0 MiB device 70.0 of 140.0 GiB",
        ),
        (
            {"accelerator_celsius": 64, "accelerator_memory_bytes": 5 * 2**30, "busy_ratio": 0.5},
            "busy 50% 64 °C 0 MiB device 5.0 GiB",
        ),
        ({"accelerator_power_watts": 80.0, "accelerator_ratio": 0.5}, "accelerator 50% 80 W 0 MiB"),
    ],
)
async def test_what_an_accelerator_tells_is_shown_and_nothing_of_what_it_does_not(
    operator_browser: httpx.AsyncClient, beat: Beat, device: dict[str, Any], told: str
) -> None:
    beat("e1", **device)
    (row,) = rows_of(await page_of(operator_browser, FLEET), "e1")
    assert told in row


async def test_an_engine_that_tries_a_newer_version_first_is_not_called_behind(
    operator_browser: httpx.AsyncClient, services: Services, beat: Beat
) -> None:
    services.blocking_redis.set(keys.announced_tunables(POOL), encode(AnnouncedTunables(7, Tunables())))
    beat("e1", tunables_version=8)
    page = await page_of(operator_browser, FLEET)
    (row,) = rows_of(page, "e1")
    assert "version 8, ahead of 7" in row
    assert "is-behind" not in page


async def test_a_pool_that_stands_still_is_said_to(operator_browser: httpx.AsyncClient, beat: Beat) -> None:
    assert "Pool default stands still: no engine runs" in words(await page_of(operator_browser, FLEET))
    beat(state="draining")
    page = words(await page_of(operator_browser, FLEET))
    assert "none of its engines takes work" in page
    assert "No process has told of itself yet" in page


async def test_a_page_that_refreshes_itself_gets_its_part_alone(
    operator_browser: httpx.AsyncClient, services: Services, beat: Beat
) -> None:
    beat()
    tell_of(services, "e1", kind="engine")
    whole, part = await page_of(operator_browser, FLEET), await page_of(operator_browser, f"{FLEET}?part=1")
    assert f'data-url="{FLEET}?part=1"' in whole
    assert part.strip().startswith('<div class="fleet" id="fleet">')
    assert "<html" not in part
    log = await page_of(operator_browser, f"{LOG}?level=error&part=1")
    assert log.strip().startswith('<div class="fleet" id="process">')
    assert f'data-url="{LOG}?level=error&amp;part=1"' in await page_of(operator_browser, f"{LOG}?level=error")


@pytest.mark.parametrize(
    ("act", "state", "message", "action"),
    [
        ("drain", "ready", Drain(), "engine drained"),
        ("resume", "drained", Resume(), "engine resumed"),
        ("restart", "draining", Restart(), "engine restarted"),
    ],
)
async def test_an_act_is_asked_for_with_a_reason_sent_and_written_down(
    operator_browser: httpx.AsyncClient,
    services: Services,
    beat: Beat,
    act: str,
    state: str,
    message: Any,
    action: str,
) -> None:
    beat(state=state)
    answer = await submit(operator_browser, act_path(act), reason="new kernel")
    assert (answer.status_code, answer.headers["location"]) == (302, FLEET)
    assert told(services) == [message]
    assert await audit() == [(action, "olaf", "e1", "default", "new kernel")]
    assert "Engine host:default is told to" in words(await page_of(operator_browser, FLEET))


async def test_who_would_stop_the_last_engine_is_warned_before(
    operator_browser: httpx.AsyncClient, services: Services, beat: Beat
) -> None:
    beat("e1")
    beat("e2")
    path = act_path("drain")
    assert "No other engine of pool" not in await page_of(operator_browser, path)
    beat("e2", state="draining")
    # The form was opened while another took work.
    answer = await submit(operator_browser, path, knows_last=None, reason="typed")
    assert answer.status_code == 409
    assert "by now no other engine of the pool takes work" in words(answer.text)
    assert 'value="typed"' in answer.text
    assert told(services) == []
    assert "No other engine of pool default takes work" in words(await page_of(operator_browser, path))
    assert (await submit(operator_browser, path)).status_code == 302
    assert told(services) == [Drain()]


async def test_the_later_of_two_operators_sees_the_state(
    operator_browser: httpx.AsyncClient, services: Services, beat: Beat
) -> None:
    beat()
    page = await page_of(operator_browser, act_path("drain"))
    beat(state="draining", leaves=True)
    token = re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)[-1]
    answer = await operator_browser.post(
        act_path("drain"), data={"csrfmiddlewaretoken": token, "knows_last": "1", "reason": ""}
    )
    assert answer.status_code == 409
    assert "engine e1 is leaving by now, and cannot be told to drain" in words(answer.text)
    assert "In this state it cannot be told to drain" in await page_of(operator_browser, act_path("drain"))
    assert told(services) == []
    assert await audit() == []


async def test_who_comes_too_late_is_told_that_the_engine_is_gone(
    operator_browser: httpx.AsyncClient, services: Services, beat: Beat
) -> None:
    beat()
    page = await page_of(operator_browser, act_path("restart"))
    services.blocking_redis.delete(keys.heartbeat(snapshot("e1").engine_id))
    token = re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)[-1]
    answer = await operator_browser.post(act_path("restart"), data={"csrfmiddlewaretoken": token, "knows_last": "1"})
    assert answer.headers["location"] == FLEET
    assert "Engine e1 is gone: nothing was done." in words(await page_of(operator_browser, FLEET))
    assert (await operator_browser.get(act_path("drain", "a%00b"))).status_code == 302
    assert (await operator_browser.get(act_path("explode"))).status_code == 404
    assert await audit() == []


@pytest.mark.parametrize("reason", ["x" * 501, f"fp-0123456789ab-{SECRET}", "a\0b"])
async def test_a_reason_that_cannot_be_kept_is_asked_for_again(
    operator_browser: httpx.AsyncClient, services: Services, beat: Beat, reason: str
) -> None:
    """C84."""
    beat()
    answer = await submit(operator_browser, act_path("drain"), reason=reason)
    assert answer.status_code == 400
    assert "reason must be a text of at most 500 characters" in words(answer.text)
    assert SECRET not in answer.text
    assert told(services) == []
    assert await audit() == []


async def test_the_log_is_shown_newest_first_and_by_level(
    operator_browser: httpx.AsyncClient, services: Services
) -> None:
    tell_of(services, "e1", kind="engine", restarts=1)
    lines = [LogLine(n, 1e9 + n, level, "serving.x", f"<line {n}>") for n, level in ((1, 20), (2, 30), (3, 40))]
    write_lines(services.blocking_redis, "e1", lines)
    page = await page_of(operator_browser, LOG)
    assert re.findall(r'<span class="log-text">(.*?)</span>', page) == [f"&lt;line {n}&gt;" for n in (3, 2, 1)]
    assert "Restarts 1" in words(page)
    for level, shown in (("warning", "32"), ("error", "3"), ("nonsense", "321")):
        page = await page_of(operator_browser, f"{LOG}?level={level}")
        assert re.findall(r"&lt;line (\d)&gt;", page) == [*shown]
    assert (await operator_browser.get(f"{FLEET}processes/another/")).status_code == 404


async def test_who_may_only_watch_sees_the_fleet_but_no_log_and_no_levers(
    application: Any, services: Services, beat: Beat
) -> None:
    """C86."""
    beat()
    tell_of(services, "e1", kind="engine")
    write_lines(services.blocking_redis, "e1", [LogLine(1, 1e9, 20, "serving.x", "a line")])
    for role in ("viewer", "auditor"):
        async with browser(application, await session_of(role)) as client:
            page = await page_of(client, FLEET)
            assert "host:default" in page
            assert "Drain" not in page
            for path in (LOG, f"{LOG}?part=1"):
                page = await page_of(client, path)
                assert "The log is for those who may steer" in page
                assert "a line" not in page
            for act in ("drain", "resume", "restart"):
                assert (await client.get(act_path(act))).status_code == 403
                assert (await client.post(act_path(act))).status_code == 403
    assert told(services) == []
    async with browser(application, None) as client:
        for path in (FLEET, f"{FLEET}?part=1", LOG, act_path("drain")):
            assert (await client.get(path)).headers["location"].startswith("/console/login/")


async def test_an_act_needs_the_forms_token(
    application: Any, services: Services, beat: Beat, operator_browser: httpx.AsyncClient
) -> None:
    beat()
    answer = await operator_browser.post(act_path("drain"), data={"knows_last": "1"})
    assert answer.status_code == 403
    assert told(services) == []


async def test_without_redis_the_pages_say_so(
    application: Any, services: Services, operator_browser: httpx.AsyncClient
) -> None:
    services.redis.connection_pool.connection_kwargs["path"] = "/nowhere/valkey.sock"
    await services.redis.connection_pool.disconnect()
    for path in (FLEET, LOG):
        page = await page_of(operator_browser, path, status=503)
        assert "Redis does not answer" in words(page)
    answer = await operator_browser.get(act_path("drain"))
    assert answer.headers["location"] == FLEET


async def test_a_crash_loop_does_not_fill_the_page(operator_browser: httpx.AsyncClient, services: Services) -> None:
    for number in range(25):
        tell_of(services, f"e{number}", kind="engine", name="host:default", has_ended=True)
    page = await page_of(operator_browser, FLEET)
    assert page.count('data-state="ended"') == 20
    assert "And 5 more." in page


async def test_pools_come_with_their_models(
    operator_browser: httpx.AsyncClient, beat: Beat, services: Services
) -> None:
    await database_sync_to_async(ensure_pool)("second", "another-model")
    beat("e9", in_pool=PoolName("second"))
    page = words(await page_of(operator_browser, FLEET))
    assert "Pool default a-model 0 engines, 0 taking work" in page
    assert "Pool second another-model 1 engine, 1 taking work" in page
