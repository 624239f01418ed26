"""The pages about sweeps: ordering one, watching it, and applying what it proposes."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import msgspec
import pytest

from dashboard.lab.sweeps_forms import SweepDraft
from serving.audit.models import AuditEvent
from serving.contracts.errors import InvalidValue
from serving.lab.experiments.sweep import play_sweep
from serving.lab.experiments.sweep_plan import Dimension, Guard, SweepPlan
from serving.lab.models import Experiment
from serving.lab.workloads.ready import READY
from serving.tuning import selectors, services
from tests.dashboard.harness import Services
from tests.dashboard.tenancy import errors_of, fields_of, in_thread, page_of, submit, words
from tests.lab.experiments.sweeping import FormulaBench, a_workload, saturating

SWEEPS = "/console/lab/sweeps/"
NEW = f"{SWEEPS}new/"
PLAN = SweepPlan(
    workload=a_workload(), dimensions=(Dimension(name="max_running", values=(4, 8, 16, 32, 64, 128)),), repeats=2
)


async def keep(**changes: Any) -> Experiment:
    values = {"kind": "sweep", "pool": "default", "title": "max_running with chat", "author": "ada"}
    plan = msgspec.to_builtins(changes.pop("sweep", PLAN))
    kept: Experiment = await in_thread(Experiment.objects.create)(**{**values, "plan": plan, **changes})
    return kept


def a_result(plan: SweepPlan = PLAN, **in_force: Any) -> dict[str, Any]:
    bench = FormulaBench(saturating, **in_force)
    result = play_sweep(plan, bench, simulated=lambda: FormulaBench(saturating, **in_force))
    return dict(msgspec.json.decode(msgspec.json.encode(result)))


async def finished(plan: SweepPlan = PLAN, **in_force: Any) -> Experiment:
    return await keep(sweep=plan, state="finished", result=a_result(plan, **in_force))


async def test_without_a_sweep_the_list_leads_to_the_first(steerer: httpx.AsyncClient) -> None:
    page = await page_of(steerer, SWEEPS)
    assert "No sweep yet." in words(page)
    assert NEW in page


async def test_the_list_says_what_came_of_each(viewer: httpx.AsyncClient) -> None:
    await finished(max_running=8)
    await keep(state="failed", error="no engine of pool default lives")
    said = words(await page_of(viewer, SWEEPS))
    assert "proposes max_running 8 → 32" in said
    assert "no engine of pool default lives" in said


async def test_a_sweep_is_ordered_with_its_plan_and_audited(steerer: httpx.AsyncClient) -> None:
    response = await submit(
        steerer,
        NEW,
        workload="chat",
        seconds="30",
        values="4, 8",
        second_dimension="max_batch_tokens",
        second_values="128,256",
        repeats="2",
        guard_metric="ttft_p95",
        guard_bound="400",
    )
    assert response.status_code == 302, errors_of(response.text)
    kept = await in_thread(Experiment.objects.get)()
    assert response.headers["location"] == f"{SWEEPS}{kept.pk}/"
    plan = msgspec.convert(kept.plan, type=SweepPlan)
    assert [each.name for each in plan.dimensions] == ["max_running", "max_batch_tokens"]
    assert plan.dimensions[0].values == (4, 8)
    assert (plan.way, plan.repeats, plan.workload.duration_seconds) == ("simulated_first", 2, 30.0)
    assert plan.guard == Guard(metric="ttft_p95", bound=400.0)
    event = await in_thread(AuditEvent.objects.get)(action="experiment ordered")
    assert event.actor == "ann"


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        ({"repeats": "none"}, "repeats"),
        ({"repeats": "99"}, "repeats"),
        ({"values": "0"}, "values"),
        ({"values": "four"}, "values"),
        ({"seconds": "-1"}, "seconds"),
        ({"margin": "99"}, "margin"),
        ({"way": "dreamt"}, "way"),
        ({"guard_metric": "ttft_p95", "guard_bound": ""}, "guard_bound"),
        ({"second_dimension": "max_running"}, "dimension"),
        ({"workload": "nothing"}, "workload"),
        ({"pool": "nowhere"}, "pool"),
    ],
)
async def test_what_cannot_be_swept_is_refused_at_its_field(
    steerer: httpx.AsyncClient, typed: dict[str, str], field: str
) -> None:
    response = await submit(steerer, NEW, **typed)
    assert response.status_code in (400, 404), typed
    if response.status_code == 400:
        assert f'id="{field}-error"' in response.text
    assert await in_thread(Experiment.objects.count)() == 0


async def test_a_link_fills_the_form_in(steerer: httpx.AsyncClient) -> None:
    page = await page_of(steerer, f"{NEW}?workload=code&dimension=max_batch_tokens&values=64,128")
    sent = fields_of(page)
    assert (sent["workload"], sent["dimension"], sent["values"]) == ("code", "max_batch_tokens", "64,128")


async def test_who_may_only_look_orders_and_stops_nothing(viewer: httpx.AsyncClient) -> None:
    kept = await keep(state="running")
    assert (await viewer.get(NEW)).status_code == 403
    assert "Stop" not in await page_of(viewer, f"{SWEEPS}{kept.pk}/")
    assert (await viewer.post(f"{SWEEPS}{kept.pk}/stop")).status_code == 403


async def test_a_running_sweep_shows_its_points_and_what_it_does(viewer: httpx.AsyncClient) -> None:
    bench = FormulaBench(saturating)
    play_sweep(PLAN, bench)
    told = next(told for told in bench.told if len(told["legs"][0]["points"]) == 2 and told["repeat"] == 1)
    kept = await keep(state="running", progress=json.loads(json.dumps(told)))
    said = words(await page_of(viewer, f"{SWEEPS}{kept.pk}/part/"))
    assert "plays max_running 16, 1 of 2" in said
    assert "4 values may still come" in said


async def test_a_finished_sweep_shows_knee_slo_and_proposal(viewer: httpx.AsyncClient) -> None:
    kept = await finished(max_running=8)
    page = await page_of(viewer, f"{SWEEPS}{kept.pk}/")
    said = words(page)
    for expected in ("knee", "proposed", "in force", "SLO broken", "TTFT p95 of chat, ms", "of its SLO, 500 ms"):
        assert expected in said
    found = re.search(r'<script id="sweep-chart" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    (leg,) = json.loads(found[1])
    assert (leg["slo_ms"], len(leg["points"])) == (500.0, 6)
    assert "Look at the change" not in said


async def test_simulated_points_are_marked(viewer: httpx.AsyncClient) -> None:
    kept = await finished(msgspec.structs.replace(PLAN, way="simulated"), max_running=8)
    said = words(await page_of(viewer, f"{SWEEPS}{kept.pk}/"))
    assert "Every point is simulated" in said


async def test_a_sweep_is_stopped_by_who_may(steerer: httpx.AsyncClient) -> None:
    kept = await keep(state="running")
    page = await page_of(steerer, f"{SWEEPS}{kept.pk}/")
    stop = f"{SWEEPS}{kept.pk}/stop"
    response = await steerer.post(stop, data=fields_of(page, action=stop))
    assert response.status_code == 302
    assert (await in_thread(Experiment.objects.get)(pk=kept.pk)).stop_asked


async def test_what_is_proposed_is_applied_with_reason_and_guardrail_once_confirmed(
    steerer: httpx.AsyncClient, services: Services
) -> None:
    await in_thread(change)(services, {"max_running": 8})
    kept = await finished(max_running=8)
    url = f"{SWEEPS}{kept.pk}/apply/"
    page = await page_of(steerer, url)
    sent = fields_of(page)
    assert sent["reason"] == f"sweep {kept.pk}: max_running with chat"
    assert (sent["guardrail"], sent["bound"], sent["metric"]) == (["on"], "500", "ttft_p95")
    assert (await in_thread(selectors.current_version)("default")).number == 2


async def test_a_change_stands_and_is_watched_after_it_was_confirmed(
    steerer: httpx.AsyncClient, services: Services
) -> None:
    await in_thread(change)(services, {"max_running": 8})
    kept = await finished(max_running=8)
    response = await submit(steerer, f"{SWEEPS}{kept.pk}/apply/")
    assert response.status_code == 302, response.text
    version = await in_thread(selectors.current_version)("default")
    assert (version.values["max_running"], version.author) == (32, "ann")
    guardrail = await in_thread(selectors.newest_guardrail)(await in_thread(selectors.find_pool)("default"))
    assert (guardrail.metric, guardrail.bound) == ("ttft_p95", 500.0)


async def test_a_change_that_came_in_between_is_shown_instead(steerer: httpx.AsyncClient, services: Services) -> None:
    await in_thread(change)(services, {"max_running": 8})
    kept = await finished(max_running=8)
    url = f"{SWEEPS}{kept.pk}/apply/"
    sent = fields_of(await page_of(steerer, url))
    await in_thread(change)(services, {"max_running": 12})
    response = await steerer.post(url, data=sent)
    assert response.status_code == 409
    assert "Nothing was changed" in words(response.text)
    assert (await in_thread(selectors.current_version)("default")).values["max_running"] == 12


def change(found: Services, changes: dict[str, Any]) -> None:
    services.change("default", changes, reason="", author="grace", redis=found.blocking_redis)


async def test_there_is_nothing_to_apply_where_nothing_is_proposed(steerer: httpx.AsyncClient) -> None:
    running = await keep(state="running")
    await page_of(steerer, f"{SWEEPS}{running.pk}/apply/", status=404)
    await page_of(steerer, f"{SWEEPS}999999/", status=404)
    await page_of(steerer, f"{SWEEPS}999999/apply/", status=404)


async def test_who_may_only_look_applies_nothing(viewer: httpx.AsyncClient) -> None:
    kept = await finished(max_running=8)
    response = await viewer.post(f"{SWEEPS}{kept.pk}/apply/", data={"based_on": "1"})
    assert response.status_code == 403


def test_a_draft_stands_for_a_plan_of_a_workload_that_exists() -> None:
    plan = SweepDraft(pool="default").plan(READY.__getitem__)
    assert plan.workload.name == "chat"
    assert plan.margin == pytest.approx(0.1)
    with pytest.raises(InvalidValue, match="way"):
        SweepDraft(way="").plan(READY.__getitem__)
