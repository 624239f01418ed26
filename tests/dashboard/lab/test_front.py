"""The Lab's front page: seven steps, their evidence and one button each, and doing again what is stale."""

from __future__ import annotations

import re
from typing import Any

import httpx
import msgspec
import pytest
from redis import Redis

from serving.audit.models import AuditEvent
from serving.contracts import keys
from serving.contracts.messages import EngineBuild, encode
from serving.lab.fingerprints import Fingerprint
from serving.lab.models import Experiment, Run
from serving.lab.workloads.measuring import measure_workload
from serving.lab.workloads.store import delete_workload, save_workload
from serving.tuning.models import Pool
from serving.tuning.services import ensure_pool
from tests.dashboard.harness import Services
from tests.dashboard.tenancy import in_thread, page_of, words
from tests.lab.steps.evidence import ENGINE, MIXED, OTHER, PLANS, POOL, keep_experiment, keep_run, minutes_ago
from tests.telemetry.conftest import snapshot
from tests.telemetry.logged import stored

FRONT = "/console/lab/"
OLD = msgspec.to_builtins(OTHER)


@pytest.fixture
async def engine(services: Services, pool: str) -> None:
    build = EngineBuild(processor="A CPU", num_threads=2)
    found = snapshot("one", backend="own", build=build)
    await services.redis.set(keys.heartbeat(found.engine_id), encode(found))
    await services.redis.zadd(keys.engines(POOL), {found.engine_id: 1})


async def keep(kind: str, **changes: Any) -> int:
    kept = await in_thread(keep_run)(**changes) if kind == "run" else await in_thread(keep_experiment)(kind, **changes)
    return int(kept.pk)


def steps_of(page: str) -> list[str]:
    return re.findall(r'<li class="lab-step" data-state="(\w+)"', page)


def forms_of(page: str) -> list[list[str]]:
    """The results that each form of the page orders again."""
    forms = re.findall(r'<form method="post" action="/console/lab/again".*?</form>', page, re.DOTALL)
    return [re.findall(r'name="result" value="([^"]+)"', form) for form in forms]


async def again(client: httpx.AsyncClient, page: str, *results: str, pool: str = "default") -> httpx.Response:
    token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    assert token is not None
    form = {"csrfmiddlewaretoken": token[1], "pool": pool, "result": list(results)}
    return await client.post(f"{FRONT}again", data=form)


@pytest.mark.usefixtures("engine")
async def test_of_a_new_pool_all_steps_are_missing_and_each_leads_to_its_form(steerer: httpx.AsyncClient) -> None:
    page = await page_of(steerer, FRONT)
    assert steps_of(page) == ["missing"] * 7
    said = words(page)
    assert "0 of 7 steps done" in said
    assert "A CPU" in said
    for url in (
        "/console/lab/workloads/",
        "/console/pools/default/tuning/",
        "/console/lab/sweeps/new/?pool=default",
        "/console/lab/runs/new/?pool=default",
        "/console/lab/runs/new/?pool=default&amp;workload=rag",
        "/console/lab/overloads/new/?pool=default&amp;way=played",
    ):
        assert f'href="{url}"' in page, url
    for link in re.findall(r'class="button[^"]*" href="(/console/lab/[^"]+)"', page):
        assert (await steerer.get(link.replace("&amp;", "&"))).status_code == 200, link


@pytest.mark.usefixtures("engine")
async def test_done_steps_lead_to_their_evidence(viewer: httpx.AsyncClient) -> None:
    sweep, overload = await keep("sweep"), await keep("overload")
    run, mixed = await keep("run", ended_at=minutes_ago(1)), await keep("run", played=MIXED, ended_at=minutes_ago(3))
    page = await page_of(viewer, FRONT)
    assert steps_of(page) == ["missing", "missing", "done", "done", "done", "done", "done"]
    for path in (f"sweeps/{sweep}/", f"overloads/{overload}/", f"runs/{run}/", f"runs/{mixed}/"):
        assert f'href="{FRONT}{path}"' in page
    said = words(page)
    assert "The SLO broke at 16; it proposes max_running 4 → 8" in said
    assert "All 4 results were measured on this." in said


@pytest.mark.usefixtures("engine")
async def test_stale_steps_say_what_differs_and_are_run_again_with_one_click(steerer: httpx.AsyncClient) -> None:
    sweep, run = await keep("sweep", fingerprint=OLD), await keep("run", fingerprint=OLD)
    page = await page_of(steerer, FRONT)
    assert steps_of(page)[2:] == ["stale", "stale", "missing", "missing", "stale"]
    assert "model: older → tiny" in words(page)
    assert forms_of(page) == [[f"sweep {sweep}"], [f"run {run}"], [f"sweep {sweep}", f"run {run}"]]
    response = await again(steerer, page, f"sweep {sweep}", f"run {run}")
    assert (response.status_code, response.headers["location"]) == (302, f"{FRONT}?pool=default")
    assert await in_thread(Experiment.objects.filter(state="waiting").count)() == 1
    assert await in_thread(Run.objects.filter(state="waiting").count)() == 1
    assert await in_thread(AuditEvent.objects.filter(actor="ann").count)() == 2
    after = await page_of(steerer, FRONT)
    assert "waits for its turn" in words(after)
    assert forms_of(after) == []


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(
    ("kind", "path"), [("sweep", "sweeps"), ("overload", "overloads"), ("three_ways", "three-ways")]
)
async def test_a_stale_result_says_so_on_its_own_page_and_is_run_again_there(
    steerer: httpx.AsyncClient, kind: str, path: str
) -> None:
    # The page itself shows no result here, but for what holds of all: its plan, and that it is stale.
    number = await keep(kind, fingerprint=OLD, state="stopped", result=None)
    page = await page_of(steerer, f"{FRONT}{path}/{number}/")
    assert "Stale: model: older → tiny." in words(page)
    assert forms_of(page) == [[f"{kind} {number}"]]
    assert '<span class="tag tag-warn">stale</span>' in await page_of(steerer, f"{FRONT}{path}/")
    response = await again(steerer, page, f"{kind} {number}")
    newest = await in_thread(Experiment.objects.latest)("pk")
    assert (newest.kind, newest.state) == (kind, "waiting")
    assert response.headers["location"] == f"{FRONT}{path}/{newest.pk}/"


@pytest.mark.usefixtures("engine")
async def test_what_holds_is_not_marked_on_its_page(steerer: httpx.AsyncClient) -> None:
    number = await keep("sweep", state="stopped", result=None)
    page = await page_of(steerer, f"{FRONT}sweeps/{number}/")
    assert "Stale" not in words(page)
    assert forms_of(page) == []
    assert "tag-warn" not in await page_of(steerer, f"{FRONT}sweeps/")


@pytest.mark.usefixtures("engine")
async def test_what_was_simulated_is_not_marked_as_no_engine_measured_it(steerer: httpx.AsyncClient) -> None:
    plan = msgspec.structs.replace(PLANS["sweep"], way="simulated")
    number = await keep("sweep", plan=plan, fingerprint=OLD, state="stopped", result=None)
    assert "Stale" not in words(await page_of(steerer, f"{FRONT}sweeps/{number}/"))
    assert "tag-warn" not in await page_of(steerer, f"{FRONT}sweeps/")


@pytest.mark.usefixtures("engine")
async def test_a_viewer_sees_all_and_orders_nothing(viewer: httpx.AsyncClient) -> None:
    number = await keep("sweep", fingerprint=OLD)
    page = await page_of(viewer, FRONT)
    assert steps_of(page)[2] == "stale"
    assert forms_of(page) == []
    assert "/new/" not in page
    assert (await again(viewer, page, f"sweep {number}")).status_code == 403
    assert await in_thread(Experiment.objects.count)() == 1


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize("result", ["sweep 999", "walk 1", "run"])
async def test_what_cannot_be_ordered_again_is_refused_in_words(steerer: httpx.AsyncClient, result: str) -> None:
    await keep("sweep", fingerprint=OLD)
    page = await page_of(steerer, FRONT)
    response = await again(steerer, page, result)
    assert response.status_code == 302
    assert "Nothing was ordered: result must be" in words(await page_of(steerer, response.headers["location"]))
    assert await in_thread(Experiment.objects.count)() == 1


@pytest.mark.usefixtures("engine")
async def test_an_order_twice_in_a_row_is_one_order(steerer: httpx.AsyncClient) -> None:
    number = await keep("sweep", fingerprint=OLD)
    page = await page_of(steerer, FRONT)
    for _ in range(2):
        await again(steerer, page, f"sweep {number}")
    assert await in_thread(Experiment.objects.count)() == 2


async def test_without_a_living_engine_nothing_is_stale_and_it_is_said(viewer: httpx.AsyncClient) -> None:
    await keep("sweep", fingerprint=OLD)
    page = await page_of(viewer, FRONT)
    assert steps_of(page)[2] == "done"
    assert "No engine of this pool is known to live" in words(page)
    assert 'class="button" href="/console/fleet/"' in page


async def test_without_redis_the_page_is_there(viewer: httpx.AsyncClient, services: Services) -> None:
    await keep("sweep", fingerprint=OLD)
    services.blocking_redis = Redis.from_url("redis://127.0.0.1:1/0", socket_connect_timeout=0.1)
    page = await page_of(viewer, FRONT)
    assert steps_of(page)[2] == "done"
    assert "No engine of this pool is known to live" in words(page)


@pytest.mark.usefixtures("engine")
async def test_results_of_a_deleted_workload_stay_and_can_be_ordered_again(steerer: httpx.AsyncClient) -> None:
    await in_thread(save_workload)(MIXED, author="ann")
    number = await keep("run", played=MIXED, fingerprint=OLD)
    await in_thread(delete_workload)("mixed", author="ann")
    page = await page_of(steerer, FRONT)
    assert steps_of(page)[4] == "stale"
    await again(steerer, page, f"run {number}")
    newest = await in_thread(Run.objects.latest)("pk")
    assert (newest.state, newest.workload["name"]) == ("waiting", "mixed")


@pytest.mark.usefixtures("engine")
async def test_lengths_are_measured_from_the_pool_that_is_looked_at(steerer: httpx.AsyncClient) -> None:
    await in_thread(stored("r1", prompt_tokens=9, completion_tokens=9, arrived_at=minutes_ago(3)).save)()
    page = await page_of(steerer, FRONT)
    assert 'href="/console/lab/measure-workload/?pool=default"' in page
    await in_thread(ensure_pool)("second", "tiny")
    form = await page_of(steerer, "/console/lab/measure-workload/?pool=second")
    assert re.search(r"<option selected>second</option>", form)


async def test_each_pool_has_steps_of_its_own_and_may_be_chosen(viewer: httpx.AsyncClient) -> None:
    await in_thread(ensure_pool)("second", "tiny")
    await keep("sweep", pool="second")
    first, second = await page_of(viewer, FRONT), await page_of(viewer, f"{FRONT}?pool=second")
    assert 'href="?pool=second"' in first
    assert (steps_of(first)[2], steps_of(second)[2]) == ("missing", "done")
    assert (await viewer.get(f"{FRONT}?pool=nowhere")).status_code == 404


@pytest.mark.usefixtures("engine")
async def test_a_pool_that_is_no_longer_configured_shows_its_results_and_orders_nothing(
    steerer: httpx.AsyncClient,
) -> None:
    await in_thread(ensure_pool)("second", "tiny")
    await keep("sweep", fingerprint=OLD)
    await in_thread(Pool.objects.filter(name="default").update)(unconfigured_since=minutes_ago(5))
    page = await page_of(steerer, f"{FRONT}?pool=default")
    assert "is not configured since" in words(page)
    assert forms_of(page) == []
    assert "/new/" not in page


async def test_without_a_pool_the_page_says_so(viewer: httpx.AsyncClient) -> None:
    await in_thread(Pool.objects.all().update)(unconfigured_since=minutes_ago(5))
    page = await page_of(viewer, FRONT)
    assert "There is no pool yet" in words(page)


async def test_the_labs_navigation_begins_with_the_steps(viewer: httpx.AsyncClient) -> None:
    page = await page_of(viewer, FRONT)
    found = re.search(r'<nav class="lab-nav" aria-label="Lab">\s*<a href="([^"]+)" aria-current="page">', page)
    assert found is not None
    assert found[1] == FRONT


@pytest.mark.usefixtures("engine")
async def test_a_stale_run_says_so_on_its_page_and_in_the_list(viewer: httpx.AsyncClient) -> None:
    number = await keep("run", fingerprint=OLD)
    assert "Stale: model: older → tiny." in words(await page_of(viewer, f"{FRONT}runs/{number}/"))
    assert '<span class="tag tag-warn">stale</span>' in await page_of(viewer, f"{FRONT}runs/")
    await in_thread(Run.objects.all().delete)()
    await keep("run")
    assert "tag-warn" not in await page_of(viewer, f"{FRONT}runs/")


@pytest.mark.usefixtures("engine")
@pytest.mark.parametrize(("fingerprint", "is_stale"), [(OTHER, True), (ENGINE, False)])
async def test_a_measured_workload_says_where_its_tokens_are_another_models(
    steerer: httpx.AsyncClient, fingerprint: Fingerprint, is_stale: bool
) -> None:
    def measure() -> None:
        stored("r1", prompt_tokens=9, completion_tokens=9, arrived_at=minutes_ago(3)).save()
        since, until = minutes_ago(9), minutes_ago(1)
        found = measure_workload(pool=POOL, since=since, until=until, name="ours", fingerprint=fingerprint)
        save_workload(found.workload, author="ann", origin="measured", evidence=found.evidence)

    await in_thread(measure)()
    page = await page_of(steerer, f"{FRONT}workloads/ours/")
    assert ("Stale: model: older → tiny." in words(page)) is is_stale
    assert ("/measure-workload/?pool=default" in page) is is_stale
    assert steps_of(await page_of(steerer, FRONT))[0] == ("stale" if is_stale else "done")
