"""The pages about overload tests: ordering one, watching it, and reading what came of it."""

from __future__ import annotations

import datetime
import json
import re
from typing import Any

import httpx
import msgspec
import pytest
from django.utils import timezone

from dashboard.lab.overloads_forms import OverloadDraft
from serving.audit.models import AuditEvent
from serving.contracts.tunables import Tunables
from serving.lab.experiments.capacity import Capacity, Probe
from serving.lab.experiments.overload_judging import judge
from serving.lab.experiments.overload_plan import POLICY, OverloadPlan
from serving.lab.experiments.overload_results import OverloadResult
from serving.lab.experiments.overload_selectors import known_capacity
from serving.lab.experiments.overload_stages import slices_of
from serving.lab.fingerprints import Fingerprint
from serving.lab.models import Experiment
from serving.lab.workloads.ready import READY
from tests.dashboard.tenancy import errors_of, fields_of, in_thread, page_of, submit, words
from tests.lab.experiments.overloading import facts_of

OVERLOADS = "/console/lab/overloads/"
NEW = f"{OVERLOADS}new/"
PLAN = OverloadPlan(workload=READY["chat"], multiples=(2.0,))
PROBES = (Probe(rate=None, finished_per_second=2.0, goodput_per_second=1.5, in_time_ratio=0.75),)
ENGINE = Fingerprint(
    model="m", device="cpu", dtype="bf16", backend="cpu", max_model_len=8192, kv_blocks=9, num_engines=1
)


async def keep(**changes: Any) -> Experiment:
    values = {"kind": "overload", "pool": "default", "title": "2 times capacity with chat", "author": "ada"}
    plan = msgspec.to_builtins(changes.pop("overload", PLAN))
    kept: Experiment = await in_thread(Experiment.objects.create)(**{**values, "plan": plan, **changes})
    return kept


def a_result(*, advice: tuple[str, ...] = (), **facts: Any) -> dict[str, Any]:
    found = facts_of(**facts)
    verdicts = judge(found)
    result = OverloadResult(
        pool="default",
        workload="chat",
        is_simulated=False,
        passed=all(each.judged != "failed" for each in verdicts),
        capacity=msgspec.structs.replace(found.capacity, probes=PROBES),
        stages=found.stages,
        verdicts=verdicts,
        slices=slices_of(found.outcomes, found.summary.moments),
        bounds={name: found.tunables[name] for name in POLICY},
        advice=advice,
    )
    return dict(msgspec.to_builtins(result))


async def finished(plan: OverloadPlan = PLAN, **facts: Any) -> Experiment:
    ended_at = timezone.now() - datetime.timedelta(minutes=5)
    return await keep(overload=plan, state="finished", result=a_result(**facts), ended_at=ended_at)


async def test_without_a_test_the_list_leads_to_the_first(steerer: httpx.AsyncClient) -> None:
    page = await page_of(steerer, OVERLOADS)
    assert "No overload test yet." in words(page)
    assert NEW in page


async def test_the_list_says_what_each_failed(viewer: httpx.AsyncClient) -> None:
    await finished(permits=(257, 10))
    await keep(state="failed", error="no engine of pool default lives")
    said = words(await page_of(viewer, OVERLOADS))
    assert "Failed 1 of 14 criteria: The queue stays within max_queue_requests" in said
    assert "No engine of pool default lives" in said


async def test_a_test_is_ordered_with_its_criteria_and_audited(steerer: httpx.AsyncClient) -> None:
    response = await submit(
        steerer, NEW, workload="code", multiples="1, 1.5, 3", stage_seconds="40", min_goodput="70", way="played"
    )
    assert response.status_code == 302, errors_of(response.text)
    kept = await in_thread(Experiment.objects.get)()
    assert response.headers["location"] == f"{OVERLOADS}{kept.pk}/"
    plan = msgspec.convert(kept.plan, type=OverloadPlan)
    assert (plan.multiples, plan.stage_seconds, plan.way) == ((1.0, 1.5, 3.0), 40.0, "played")
    assert (plan.criteria.min_goodput_ratio, plan.criteria.max_refusal_ms) == (0.7, 1000.0)
    assert plan.workload.name == "code"
    event = await in_thread(AuditEvent.objects.get)(action="experiment ordered")
    assert event.actor == "ann"


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        ({"multiples": "2, 1"}, "multiples"),
        ({"multiples": "many"}, "multiples"),
        ({"stage_seconds": "0"}, "stage_seconds"),
        ({"capacity_seconds": ""}, "capacity_seconds"),
        ({"min_goodput": "120"}, "min_goodput"),
        ({"min_truthful": "-1"}, "min_truthful"),
        ({"max_recovery_seconds": "soon"}, "max_recovery_seconds"),
        ({"min_fairness": "2"}, "min_fairness"),
        ({"way": "dreamt"}, "way"),
        ({"workload": "nothing"}, "workload"),
        ({"pool": "nowhere"}, "pool"),
    ],
)
async def test_what_cannot_be_played_is_refused_at_its_field(
    steerer: httpx.AsyncClient, typed: dict[str, str], field: str
) -> None:
    response = await submit(steerer, NEW, **typed)
    assert response.status_code == 400, typed
    assert f'id="{field}-error"' in response.text
    assert await in_thread(Experiment.objects.count)() == 0


async def test_a_link_fills_the_form_in(steerer: httpx.AsyncClient) -> None:
    page = await page_of(steerer, f"{NEW}?workload=code&multiples=1,3")
    sent = fields_of(page)
    assert (sent["workload"], sent["multiples"]) == ("code", "1,3")


async def test_a_capacity_that_was_measured_is_taken_over_unless_that_is_not_wanted(
    steerer: httpx.AsyncClient,
) -> None:
    kept = await finished(msgspec.structs.replace(PLAN, way="simulated"))
    await submit(steerer, NEW, workload="chat", way="simulated")
    newest = msgspec.convert((await in_thread(Experiment.objects.latest)("pk")).plan, type=OverloadPlan)
    assert newest.capacity is not None
    assert newest.capacity.measured_by == f"overload test {kept.pk}"
    await submit(steerer, NEW, workload="chat", way="simulated", reuse=None)
    newest = msgspec.convert((await in_thread(Experiment.objects.latest)("pk")).plan, type=OverloadPlan)
    assert newest.capacity is None


@pytest.mark.parametrize(
    ("asked", "is_known"),
    [
        ({}, True),
        ({"workload": READY["code"]}, False),
        ({"way": "simulated"}, False),
        ({"tunables": Tunables().changed({"max_running": 5}).as_dict()}, False),
        ({"fingerprint": msgspec.structs.replace(ENGINE, device="cuda")}, False),
        ({"fingerprint": Fingerprint()}, False),
    ],
)
async def test_a_capacity_holds_for_the_same_requests_engines_and_policy(
    viewer: httpx.AsyncClient, asked: dict[str, Any], is_known: bool
) -> None:
    await keep(state="finished", result=a_result(), ended_at=timezone.now(), fingerprint=msgspec.to_builtins(ENGINE))
    terms: dict[str, Any] = {"workload": READY["chat"], "way": "played", "fingerprint": ENGINE}
    terms["tunables"] = Tunables().as_dict()
    found: Capacity | None = await in_thread(known_capacity)("default", **{**terms, **asked})
    assert (found is not None) == is_known


async def test_a_capacity_of_yesterday_is_measured_again(viewer: httpx.AsyncClient) -> None:
    kept = await finished()
    long_ago = timezone.now() - datetime.timedelta(hours=25)
    await in_thread(Experiment.objects.filter(pk=kept.pk).update)(
        ended_at=long_ago, fingerprint=msgspec.to_builtins(ENGINE)
    )
    terms: dict[str, Any] = {"way": "played", "fingerprint": ENGINE, "tunables": Tunables().as_dict()}
    assert await in_thread(known_capacity)("default", READY["chat"], **terms) is None


async def test_a_running_test_shows_what_it_does_and_the_rates_so_far(viewer: httpx.AsyncClient) -> None:
    progress = {"doing": "90% of what was finished then", "probes": msgspec.to_builtins(PROBES), "capacity": None}
    kept = await keep(state="running", progress=progress)
    said = words(await page_of(viewer, f"{OVERLOADS}{kept.pk}/part/"))
    assert "It plays 90% of what was finished then." in said
    assert "as many as there are places" in said


async def test_a_finished_test_shows_each_criterion_with_bound_and_evidence(viewer: httpx.AsyncClient) -> None:
    kept = await finished(permits=(257, 10), advice=("lower max_queue_requests",))
    page = await page_of(viewer, f"{OVERLOADS}{kept.pk}/")
    said = words(page)
    for expected in (
        "257 sequences at most",
        "at most 256 sequences wait",
        "Retry-After is true",
        "lower max_queue_requests",
        "Capacity: 2 requests/s: above that the queue grows.",
    ):
        assert expected in said
    found = re.search(r'<script id="overload-plots" type="application/json">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    rates, queue = json.loads(found[1])
    assert [series["label"] for series in rates["series"]] == ["Offered", "Let in", "Refused", "Goodput"]
    assert [line["label"] for line in rates["lines"]] == ["0.5 ×", "2 ×", "0.5 ×", "capacity"]
    assert len(queue["series"][0]["points"]) == 30


async def test_a_result_is_a_file_too_and_one_that_is_not_there_is_not(viewer: httpx.AsyncClient) -> None:
    kept, running = await finished(), await keep(state="running")
    response = await viewer.get(f"{OVERLOADS}{kept.pk}/file")
    assert response.headers["content-disposition"] == f'attachment; filename="overload-{kept.pk}.json"'
    assert msgspec.convert(response.json()["result"], type=OverloadResult).passed
    assert (await viewer.get(f"{OVERLOADS}{running.pk}/file")).status_code == 404
    assert (await viewer.get(f"{OVERLOADS}{10**25}/")).status_code == 404


async def test_who_may_only_look_orders_and_stops_nothing(viewer: httpx.AsyncClient) -> None:
    kept = await keep(state="running")
    assert (await viewer.get(NEW)).status_code == 403
    assert "Stop" not in await page_of(viewer, f"{OVERLOADS}{kept.pk}/")
    assert (await viewer.post(f"{OVERLOADS}{kept.pk}/stop")).status_code == 403


async def test_a_test_is_stopped_by_who_may(steerer: httpx.AsyncClient) -> None:
    kept = await keep(state="running")
    page = await page_of(steerer, f"{OVERLOADS}{kept.pk}/")
    stop = f"{OVERLOADS}{kept.pk}/stop"
    response = await steerer.post(stop, data=fields_of(page, action=stop))
    assert response.status_code == 302
    assert (await in_thread(Experiment.objects.get)(pk=kept.pk)).stop_asked


def test_every_field_of_the_form_is_one_of_the_draft() -> None:
    assert set(msgspec.structs.asdict(PLAN.criteria)) - set(OverloadDraft.__slots__) == {
        "min_goodput_ratio",
        "min_truthful_ratio",
    }
