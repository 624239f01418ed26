"""A pool's past over HTTP: who may read it, what it holds, and what is refused."""

from __future__ import annotations

import datetime
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from django.utils import timezone

from serving.telemetry.frames import POINT_FIELDS
from serving.telemetry.models import PoolEvent, Rollup
from serving.telemetry.rollups import encode_content
from serving.tuning.services import change
from tests.dashboard.harness import POOL, Services
from tests.dashboard.tenancy import browser, in_thread, session_of
from tests.telemetry.test_rollups import point_at, stretch

URL = f"/console/pools/{POOL}/history.json"


@pytest.fixture
async def watcher(application: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(application, await session_of("viewer")) as client:
        yield client


def range_of(since: datetime.datetime, until: datetime.datetime, **more: Any) -> dict[str, Any]:
    return {"since": since.timestamp(), "until": until.timestamp(), **more}


def last_hour(**more: Any) -> dict[str, Any]:
    now = timezone.now()
    return range_of(now - datetime.timedelta(hours=1), now + datetime.timedelta(minutes=1), **more)


def make_past() -> datetime.datetime:
    """A stretch of ten seconds some minutes ago, and an event."""
    at = timezone.now().replace(second=0, microsecond=0) - datetime.timedelta(minutes=5)
    content = stretch(0.2, points=[point_at(1.0, num_running=3)], **{"finished:stop": 10, "refused:queue_full": 1})
    Rollup.objects.create(pool=POOL, seconds=10, starts_at=at, content=encode_content(content))
    PoolEvent.objects.create(event_id="e1", pool=POOL, at=at, kind="engine_joined", subject="engine-1", text="it came")
    return at


async def test_past_holds_rows_versions_and_events(watcher: httpx.AsyncClient, services: Services) -> None:
    at = await in_thread(make_past)()
    await in_thread(change)(POOL, {"max_running": 7}, reason="busy", author="ann", redis=services.blocking_redis)
    answer = await watcher.get(URL, params=last_hour())
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    past = answer.json()
    assert (past["seconds"], past["fields"]) == (10, list(POINT_FIELDS))
    (row,) = (dict(zip(past["fields"], row, strict=True)) for row in past["points"])
    assert (row["unix_seconds"], row["num_running"], row["finished_per_second"]) == (at.timestamp() + 5, 3.0, 1.0)
    assert (row["refusals_per_second"], past["highest"][0]["num_running"]) == ({"queue_full": 0.1}, 3.0)
    assert [(version["number"], version["reason"]) for version in past["versions"]] == [
        (2, "busy"),
        (1, "the defaults"),
    ]
    assert [(event["kind"], event["subject"], event["text"]) for event in past["events"]] == [
        ("engine_joined", "engine-1", "it came")
    ]


async def test_version_in_force_as_the_range_began_is_told_too(watcher: httpx.AsyncClient, services: Services) -> None:
    for number in (5, 6):
        await in_thread(change)(POOL, {"max_running": number}, reason="", author="ann", redis=services.blocking_redis)
    now = timezone.now()
    later = range_of(now + datetime.timedelta(seconds=1), now + datetime.timedelta(hours=1))
    past = (await watcher.get(URL, params=later)).json()
    assert [version["number"] for version in past["versions"]] == [3]
    assert past["points"] == []


async def test_what_is_no_range_is_refused_with_its_field(watcher: httpx.AsyncClient) -> None:
    wrong = [
        *(("since", value) for value in (None, "", "yesterday", "\0", "nan", "1e5")),
        *(("until", value) for value in ("inf", "-1", "0")),
        *(("max_points", value) for value in ("many", "0", "-1", "99999999999", "²")),
        *(("least_seconds", value) for value in ("many", "0", "30", "²")),
    ]
    for field, value in wrong:
        query = {name: given for name, given in (last_hour() | {field: value}).items() if given is not None}
        answer = await watcher.get(URL, params=query)
        assert answer.status_code == 400, (field, value)
        error = answer.json()["error"]
        assert (error["code"], error["param"]) == ("invalid_value", field), value
        assert field in error["message"]


async def test_there_is_no_past_of_a_pool_that_is_none(watcher: httpx.AsyncClient) -> None:
    for pool in ("none-such", "no%00ne", "é" * 200):
        answer = await watcher.get(f"/console/pools/{pool}/history.json", params=last_hour())
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "pool_not_found")


async def test_only_those_who_may_watch_read_it(application: Any, watcher: httpx.AsyncClient) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://127.0.0.1") as stranger:
        answer = await stranger.get(URL, params=last_hour())
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "signed_out")
    assert (await watcher.post(URL)).status_code in (403, 405)
