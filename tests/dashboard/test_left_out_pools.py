"""The pages of a pool that the settings name no longer: said plainly, readable, and without levers."""

from __future__ import annotations

import datetime

import httpx
import pytest

from dashboard import protocol
from serving.telemetry.models import Rollup
from serving.telemetry.rollups import encode_content
from serving.tuning import services as tuning
from serving.tuning.models import Pool
from serving.tuning.selectors import current_version, find_pool
from tests.dashboard.conftest import OpenPage
from tests.dashboard.harness import POOL, Page, Services
from tests.dashboard.tenancy import browser, fields_of, in_thread, page_of, session_of, words
from tests.telemetry.test_rollups import stretch
from tests.tuning.engines import beat

GONE = f"/console/pools/{POOL}/"


@pytest.fixture
async def left_out(application: object, services: Services, pool: str) -> str:
    await in_thread(tuning.ensure_pool)("second", "a-model")
    redis = services.blocking_redis
    await in_thread(tuning.change)(pool, {"max_running": 8}, reason="quieter", author="ann", redis=redis)
    await in_thread(tuning.leave_out_others)(["second"])
    return pool


@pytest.fixture
async def admin_of_it(admin: httpx.AsyncClient, left_out: str) -> httpx.AsyncClient:
    return admin


@pytest.mark.parametrize("path", ["", "steps/", "tuning/", "tuning/presets/chat/", "versions/", "versions/1/"])
async def test_its_pages_say_since_when_and_offer_nothing_to_do(admin_of_it: httpx.AsyncClient, path: str) -> None:
    page = await page_of(admin_of_it, GONE + path)
    assert f"Pool {POOL} is not configured since 20" in words(page)
    assert ("Its last 24 hours" in page) is not path.startswith("versions/")
    assert f"/console/playground/?pool={POOL}" not in page
    for word in ("data-socket-path", "Roll back to", "lever-", "badge", 'name="reason"'):
        assert word not in page, word
    if path != "versions/1/":
        assert "quieter" in page


@pytest.mark.parametrize("seconds", [600, 3600])
async def test_its_last_figures_reach_to_the_moment_at_which_it_was_left_out(
    admin_of_it: httpx.AsyncClient, seconds: int
) -> None:
    at = (await in_thread(find_pool)(POOL)).unconfigured_since
    content = encode_content(stretch(*[0.2] * 1234))
    begins = datetime.datetime.fromtimestamp(at.timestamp() // seconds * seconds, tz=datetime.UTC)
    age = datetime.timedelta(days=0 if seconds == 600 else 60)  # as it is looked at long after
    await in_thread(Rollup.objects.create)(pool=POOL, seconds=seconds, starts_at=begins - age, content=content)
    await in_thread(Pool.objects.filter(name=POOL).update)(unconfigured_since=at - age)
    page = words(await page_of(admin_of_it, GONE))
    assert "Nothing was measured" not in page
    assert "1,234" in page


async def test_its_past_is_read_and_what_is_done_to_it_refused(admin_of_it: httpx.AsyncClient) -> None:
    past = await admin_of_it.get(f"{GONE}history.json?since=0&until=60")
    assert past.status_code == 200
    for path in ("versions/1/roll-back", "tuning/presets/chat/", "tuning/canary/2/all", "sample-traffic"):
        form = fields_of(await page_of(admin_of_it, "/console/alerts/new/"))
        answer = await admin_of_it.post(GONE + path, data=form | {"based_on": "2"})
        assert answer.status_code == 409, path
        assert f"Nothing was done Pool {POOL} is not configured since" in words(answer.text), path
    assert (await in_thread(current_version)(POOL)).number == 2


async def test_pages_that_name_no_pool_show_one_that_is_configured(admin_of_it: httpx.AsyncClient) -> None:
    for path in ("/console/", "/console/steps/", "/console/playground/"):
        page = await page_of(admin_of_it, path)
        assert f">{POOL}<" not in page, path
        assert "second" in page
    assert (await admin_of_it.get("/console/tuning/")).headers["Location"] == "/console/pools/second/tuning/"


async def test_the_fleet_tells_it_from_a_pool_without_engines(
    admin_of_it: httpx.AsyncClient, services: Services
) -> None:
    page = words(await page_of(admin_of_it, "/console/fleet/"))
    assert "Pool second stands still: no engine runs" in page
    assert page.index("Pool second") < page.index(f"Pool {POOL}")
    assert f"Pool {POOL} a-model Not configured since 20" in page
    assert "stands still" not in page[page.index(f"Pool {POOL} a-model") :]
    beat(services.blocking_redis, "e1")
    assert "Engines of it still run" in words(await page_of(admin_of_it, "/console/fleet/"))


async def test_a_page_that_was_open_is_told_and_lets_in_no_command(
    make_page: OpenPage, operator: str, pool: str
) -> None:
    page: Page = make_page(operator)
    await page.open()
    await in_thread(tuning.ensure_pool)("second", "a-model")
    await in_thread(tuning.leave_out_others)(["second"])
    page.send(type="change", id=1, changes={"max_running": 8}, based_on=1)
    assert await page.until_closed() == protocol.NO_SUCH_POOL
    again = make_page(operator)
    assert await again.connect()
    assert await again.until_closed() == protocol.NO_SUCH_POOL


async def test_a_viewer_reads_it_too(application: object, left_out: str) -> None:
    async with browser(application, await session_of("viewer")) as viewer:
        page = await page_of(viewer, GONE)
        assert "Every version of its tunables" in page
        assert "/console/audit/?pool" not in page
