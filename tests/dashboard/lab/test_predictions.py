"""What if?, as pages: the form, a prediction as it stands, the list with the record, and the Tuning page's part."""

from __future__ import annotations

import re
from typing import Any

import httpx
import msgspec
import pytest
from django.utils import timezone

from serving.audit.models import AuditEvent
from serving.contracts.tunables import Tunables
from serving.lab.costs.default import DEFAULT_COST, DEFAULT_ENVELOPE
from serving.lab.models import Prediction
from serving.lab.predictions.results import Basis, MeasuredFigures
from serving.lab.predictions.simulating import simulate_both
from serving.lab.workloads.codec import workload_to_dict
from tests.dashboard.harness import POOL, make_user, sign_in
from tests.dashboard.steering import TUNING
from tests.dashboard.tenancy import browser, errors_of, fields_of, in_thread, page_of, submit, words
from tests.lab.workloads.shapes import workload

PREDICTIONS = "/console/lab/predictions/"
NEW = f"{PREDICTIONS}new/"
BEFORE = Tunables()
AFTER = BEFORE.changed({"max_running": 2, "max_queue_requests": 3})
BASIS = Basis(cost=DEFAULT_COST, envelope=DEFAULT_ENVELOPE)
SHORT = workload(name="short", duration_seconds=2.0)


async def keep(**changes: Any) -> Prediction:
    values = {
        "pool": POOL,
        "workload": workload_to_dict(SHORT),
        "current": BEFORE.as_dict(),
        "proposed": AFTER.as_dict(),
        "cost": msgspec.to_builtins(BASIS),
        "author": "ada",
        **changes,
    }
    kept: Prediction = await in_thread(Prediction.objects.create)(**values)
    return kept


def simulated() -> dict[str, Any]:
    return dict(msgspec.to_builtins(simulate_both(SHORT, current=BEFORE, proposed=AFTER, basis=BASIS, quotas={})))


async def test_what_if_is_asked_without_scripts_and_audited(steerer: httpx.AsyncClient) -> None:
    response = await submit(steerer, f"{NEW}?pool={POOL}&workload=chat&max_running=4", at=NEW)
    assert response.status_code == 302, errors_of(response.text)
    kept = await in_thread(Prediction.objects.get)()
    assert response.headers["location"] == f"{PREDICTIONS}{kept.pk}/"
    assert (kept.proposed, kept.workload["name"], kept.author) == (
        BEFORE.changed({"max_running": 4}).as_dict(),
        "chat",
        "ann",
    )
    event = await in_thread(AuditEvent.objects.get)(action="prediction ordered")
    assert (event.actor, event.changes) == ("ann", {"max_running": [BEFORE.max_running, 4]})
    assert "It waits for the Lab" in words(await page_of(steerer, response.headers["location"]))


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        ({"set.max_running": "many"}, "max_running"),
        ({"set.max_running": "0"}, "max_running"),
        ({"set.max_running": "4", "workload": "nothing"}, "workload"),
        ({"set.max_running": "4", "workload": ""}, "workload"),
    ],
)
async def test_what_cannot_be_predicted_is_refused_at_its_field(
    steerer: httpx.AsyncClient, typed: dict[str, str], field: str
) -> None:
    response = await submit(steerer, NEW, **{"workload": "chat", **typed})
    assert response.status_code == 400
    assert list(errors_of(response.text)) == [field]
    assert await in_thread(Prediction.objects.count)() == 0


async def test_values_that_are_in_force_are_no_question(steerer: httpx.AsyncClient) -> None:
    response = await submit(steerer, NEW, workload="chat")
    assert response.status_code == 400
    assert "Nothing was ordered: nothing would change: these values are in force." in words(response.text)


async def test_scripts_get_addresses_or_the_reason_as_json(steerer: httpx.AsyncClient) -> None:
    headers = {"Accept": "application/json"}
    token = fields_of(await page_of(steerer, NEW))["csrfmiddlewaretoken"]
    sent = {"pool": POOL, "workload": "chat", "set.max_running": "4", "csrfmiddlewaretoken": token}
    response = await steerer.post(NEW, data=sent, headers=headers)
    assert response.status_code == 201
    number = response.json()["id"]
    assert response.json() == {
        "id": number,
        "url": f"{PREDICTIONS}{number}/",
        "part_url": f"{PREDICTIONS}{number}/part/",
    }
    part = await page_of(steerer, response.json()["part_url"])
    assert 'data-over="false"' in part
    assert "<html" not in part
    refused = await steerer.post(NEW, data={**sent, "workload": ""}, headers=headers)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "workload"
    assert "at least 30 requests" in refused.json()["error"]["message"]


async def test_a_computed_prediction_shows_both_sides_and_what_to_know(viewer: httpx.AsyncClient) -> None:
    kept = await keep(state="finished", predicted=simulated())
    page = await page_of(viewer, f"{PREDICTIONS}{kept.pk}/")
    said = words(page)
    for title in ("TTFT p50", "TTFT p95", "ITL p95", "E2E p50", "E2E p95", "Generated tokens/s", "KV memory"):
        assert title in said
    assert re.search(r"Refused 0\.0% \d+\.\d% worse", said)
    assert re.search(r"Requests finished/s [\d.]+ [\d.]+ ↓ \d+ % worse", said)
    assert "proposed: " in said
    assert "queue_full" in said
    assert "the default one, which was not fitted to this engine" in said
    assert "The simulator leaves out" in said
    assert 'data-over="true"' in page
    assert "No version was stored with these values within an hour." in said


async def test_a_failed_one_says_why(viewer: httpx.AsyncClient) -> None:
    kept = await keep(state="failed", error="the process that computed it is gone")
    assert "The process that computed it is gone." in words(await page_of(viewer, f"{PREDICTIONS}{kept.pk}/part/"))
    assert "the process that computed it is gone" in words(await page_of(viewer, PREDICTIONS))


async def test_an_applied_one_stands_beside_what_was_measured_and_counts_in_the_record(
    viewer: httpx.AsyncClient,
) -> None:
    predicted = simulated()
    figures = {"finished_per_second": predicted["proposed"]["total"]["num_finished"] / 2 / 2}
    measured = msgspec.to_builtins(MeasuredFigures(seconds=600, figures=figures))
    facts = {"state": "finished", "predicted": predicted, "version": 1, "measured_at": timezone.now()}
    kept = await keep(**facts, measured=measured)
    page = await page_of(viewer, f"{PREDICTIONS}{kept.pk}/")
    said = words(page)
    assert "It was applied, and measured over 10 min." in said
    assert f"/console/pools/{POOL}/versions/1/" in page
    assert "Requests finished/s" in said.split("What happened")[1]
    assert f'href="{PREDICTIONS}{kept.pk}/"' in await page_of(viewer, f"/console/pools/{POOL}/versions/1/")
    record = words(await page_of(viewer, PREDICTIONS))
    assert "1 computed, 1 applied, 1 measured" in record
    assert "off by" in record
    assert "Median error" in record


async def test_without_any_the_list_says_how_to_begin(steerer: httpx.AsyncClient, viewer: httpx.AsyncClient) -> None:
    assert "No prediction yet. Ask for the first" in words(await page_of(steerer, PREDICTIONS))
    assert NEW not in await page_of(viewer, PREDICTIONS)
    assert (await viewer.get(f"{PREDICTIONS}{2**70}/")).status_code == 404


async def test_only_who_may_experiment_asks(viewer: httpx.AsyncClient) -> None:
    assert (await viewer.get(NEW)).status_code == 403
    assert (await viewer.post(NEW, data={"pool": POOL, "set.max_running": "4"})).status_code == 403
    assert await in_thread(Prediction.objects.count)() == 0


async def test_the_tuning_page_offers_it_to_who_may_steer_and_experiment(
    steerer: httpx.AsyncClient, viewer: httpx.AsyncClient, application: Any
) -> None:
    page = await page_of(steerer, TUNING)
    assert f'id="what-if" data-url="{NEW}" data-pool="{POOL}"' in page
    assert "measured from the last hour" in words(page)
    assert '<option value="chat">chat</option>' in page
    assert 'id="what-if"' not in await page_of(viewer, TUNING)
    steers_alone = await sign_in(await in_thread(make_user)("sam"))
    async with browser(application, steers_alone) as client:
        assert 'id="what-if"' not in await page_of(client, TUNING)
