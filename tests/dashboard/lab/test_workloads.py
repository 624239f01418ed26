"""The pages about workloads: who sees them, the form, JSON and files, and measuring one."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from serving.audit.models import AuditEvent
from serving.lab.workloads import store
from serving.lab.workloads.arrivals import Trace, TraceRequest
from serving.lab.workloads.codec import workload_to_json
from serving.lab.workloads.distributions import Histogram, LogNormal, Uniform
from serving.lab.workloads.ready import READY
from serving.lab.workloads.workload import SharedPrefixes, Workload
from serving.telemetry.models import RequestRecord
from tests.dashboard.tenancy import browser, errors_of, fields_of, in_thread, page_of, session_of, words
from tests.lab.workloads.shapes import request_class, workload
from tests.telemetry.logged import stored

WORKLOADS = "/console/lab/workloads/"
NEW = "/console/lab/new-workload/"
MEASURE = "/console/lab/measure-workload/"


@pytest.fixture
async def operator(application: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with browser(application, await session_of("operator")) as client:
        yield client


async def save(**changes: Any) -> Workload:
    known = await in_thread(store.save_workload)(workload(**changes), author="ann")
    return known.workload


async def form_of(client: httpx.AsyncClient, url: str) -> dict[str, Any]:
    """What the form of fields would send as it stands."""
    form, _, _ = (await page_of(client, url)).partition("As JSON, or from a file")
    return fields_of(form)


async def found(name: str) -> Workload:
    return (await in_thread(store.find_known)(name)).workload


async def test_lists_what_is_saved_and_ready_with_its_shape(operator: httpx.AsyncClient) -> None:
    await save(about="ours")
    page = words(await page_of(operator, WORKLOADS))
    assert "10 a second, at random (Poisson)" in page
    assert all(name in page for name in READY)


async def test_one_is_drawn_and_told_in_figures(operator: httpx.AsyncClient) -> None:
    page = await page_of(operator, f"{WORKLOADS}chat/")
    assert "Splitwise" in words(page)
    charts = json.loads(re.findall(r'id="workload-charts" type="application/json">(.*?)</script>', page)[0])
    assert [each["name"] for each in charts["lengths"]] == ["0-prompts", "0-answers"]
    assert all(sum(each["played"]) == pytest.approx(1, abs=0.02) for each in charts["lengths"])
    assert sum(charts["arrivals"]["played"]) * charts["arrivals"]["seconds"] == pytest.approx(300, rel=0.5)


@pytest.mark.parametrize("name", ["chat", "bulk"])
async def test_a_ready_one_can_be_copied_and_exported_but_not_changed(operator: httpx.AsyncClient, name: str) -> None:
    page = await page_of(operator, f"{WORKLOADS}{name}/")
    assert f"from={name}" in page
    assert "Delete this workload" not in page
    exported = await operator.get(f"{WORKLOADS}{name}/file")
    assert exported.content == workload_to_json(READY[name])
    assert "attachment" in exported.headers["Content-Disposition"]
    led = await operator.get(f"{WORKLOADS}{name}/edit/")
    assert led.headers["Location"] == f"{NEW}?from={name}"


@pytest.mark.parametrize("name", READY)
async def test_a_copy_that_is_stored_as_it_stands_is_the_same(operator: httpx.AsyncClient, name: str) -> None:
    sent = await form_of(operator, f"{NEW}?from={name}")
    response = await operator.post(NEW, data=sent | {"name": "ours"})
    assert response.status_code == 302, errors_of(response.text)
    assert await found("ours") == msgspec.structs.replace(READY[name], name="ours")


async def test_the_form_keeps_what_it_cannot_show(operator: httpx.AsyncClient) -> None:
    counted = Histogram((1, 5, 9), (2, 3))
    prefixes = SharedPrefixes(0.5, 20, 3)
    classes = (request_class("a", prompt_tokens=counted, prefixes=prefixes), request_class("b"))
    stored_one = await save(classes=classes, arrivals=Trace((TraceRequest(0.5, 3, 4, "b"),)), duration_seconds=None)
    sent = await form_of(operator, f"{WORKLOADS}some/edit/")
    response = await operator.post(f"{WORKLOADS}some/edit/", data=sent | {"arrivals.speed": "2"})
    assert response.status_code == 302, errors_of(response.text)
    assert await found("some") == msgspec.structs.replace(
        stored_one, arrivals=Trace((TraceRequest(0.5, 3, 4, "b"),), speed=2.0)
    )


async def test_changes_fields_adds_a_class_and_leaves_one_out(operator: httpx.AsyncClient) -> None:
    await save(classes=(request_class("a"), request_class("b")))
    sent = await form_of(operator, f"{WORKLOADS}some/edit/")
    changes = {
        "arrivals.kind": "steps",
        "arrivals.rates": "1, 2.5 4",
        "classes[0].leave_out": "on",
        "classes[1].prompt_tokens.kind": "uniform",
        "classes[1].prompt_tokens.low": "10",
        "classes[1].prompt_tokens.high": "20",
        "classes[2].name": "c",
        "classes[2].slo.ttft_ms": "750",
        "reason": "Mondays",
    }
    response = await operator.post(f"{WORKLOADS}some/edit/", data=sent | changes)
    assert response.status_code == 302, errors_of(response.text)
    after = await found("some")
    assert after.arrivals.rates == (1, 2.5, 4)  # type: ignore[union-attr]
    assert [each.name for each in after.classes] == ["b", "c"]
    assert after.classes[0].prompt_tokens == Uniform(10, 20)
    assert after.classes[1].prompt_tokens == LogNormal(300, 0.7)
    assert after.classes[1].slo.ttft_ms == 750
    event = await in_thread(AuditEvent.objects.get)(action="workload changed")
    assert (event.actor, event.subject, event.reason) == ("operator", "some", "Mondays")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": "Some Thing"}, "name"),
        ({"name": "chat"}, "name"),
        ({"duration_seconds": "soon"}, "duration_seconds"),
        ({"seed": "1.5"}, "seed"),
        ({"arrivals.rate": "-1"}, "arrivals.rate"),
        ({"arrivals.kind": "gamma", "arrivals.cv": ""}, "arrivals.cv"),
        ({"arrivals.kind": "never"}, "arrivals"),
        ({"arrivals.kind": "trace"}, "arrivals"),
        ({"classes[0].leave_out": "on", "classes[1].name": "b", "classes[1].share": "-1"}, "classes[1].share"),
        ({"classes[0].prompt_tokens.sigma": "9"}, "classes[0].prompt_tokens.sigma"),
        ({"classes[0].output_tokens.kind": "histogram"}, "classes[0].output_tokens"),
        ({"classes[0].prefixes.share": "0.5"}, "classes[0].prefixes.tokens"),
    ],
)
async def test_an_error_stands_beside_its_field_and_nothing_is_stored(
    operator: httpx.AsyncClient, changes: dict[str, str], field: str
) -> None:
    await save()
    sent = await form_of(operator, f"{WORKLOADS}some/edit/")
    response = await operator.post(f"{WORKLOADS}some/edit/", data=sent | changes)
    assert response.status_code == 400
    assert f'id="{field}-error"' in response.text
    assert await found("some") == workload()


async def test_a_change_on_top_of_anothers_is_refused_and_what_was_typed_stays(operator: httpx.AsyncClient) -> None:
    await save()
    sent = await form_of(operator, f"{WORKLOADS}some/edit/")
    await in_thread(store.change_workload)("some", workload(seed=9), author="bob")
    response = await operator.post(f"{WORKLOADS}some/edit/", data=sent | {"about": "mine"})
    assert response.status_code == 409
    assert 'value="mine"' in response.text
    assert (await found("some")).seed == 9


async def test_json_is_stored_from_a_text_and_from_a_file(operator: httpx.AsyncClient) -> None:
    sent = await form_of(operator, NEW)
    token = {"csrfmiddlewaretoken": sent["csrfmiddlewaretoken"]}
    text = workload_to_json(workload(name="typed")).decode()
    assert (await operator.post(NEW, data={**token, "way": "text", "text": text})).status_code == 302
    file = {"file": ("a.json", workload_to_json(workload(name="filed")), "application/json")}
    assert (await operator.post(NEW, data={**token, "way": "file"}, files=file)).status_code == 302
    assert await found("typed") == workload(name="typed")
    assert await found("filed") == workload(name="filed")
    for broken in ({"way": "text", "text": "{"}, {"way": "file"}):
        response = await operator.post(NEW, data={**token, **broken})
        assert response.status_code == 400
        assert f'id="{broken["way"]}-error"' in response.text


async def test_deletes_unless_another_changed_it(operator: httpx.AsyncClient) -> None:
    await save()
    sent = fields_of(await page_of(operator, f"{WORKLOADS}some/"))
    await operator.post(f"{WORKLOADS}some/delete", data=sent | {"revision": "7"})
    assert await found("some") == workload()
    await operator.post(f"{WORKLOADS}some/delete", data=sent)
    await page_of(operator, f"{WORKLOADS}some/", status=404)


async def test_measures_what_is_logged_first_to_look_at_then_to_save(operator: httpx.AsyncClient) -> None:
    rows = [stored(f"req_{n}", n * 2.0, prompt_tokens=50 + n, completion_tokens=9) for n in range(40)]
    await in_thread(RequestRecord.objects.bulk_create)(rows)
    sent = fields_of(await page_of(operator, MEASURE))
    sent |= {"pool": "default", "since": "2026-03-31T12:00", "until": "2026-03-31T13:00", "name": "ours"}
    sent |= {"arrivals_as": "fitted", "act": "look"}
    looked = await operator.post(MEASURE, data=sent)
    assert looked.status_code == 200
    assert "40 requests, from 2026-03-31 12:00:00" in words(looked.text)
    assert await in_thread(store.saved_workloads)() == []
    saved = await operator.post(MEASURE, data=sent | {"act": "save"})
    assert saved.status_code == 302
    known = await in_thread(store.find_known)("ours")
    assert (known.origin, known.workload.classes[0].share) == ("measured", 40)
    assert "Described best by" in await page_of(operator, f"{WORKLOADS}ours/")


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"since": "yesterday"}, "since"),
        ({"until": "2026-03-31T11:00"}, "until"),
        ({"until": "2026-04-30T11:00"}, "until"),
        ({}, "since"),
        ({"arrivals_as": "guessed"}, "arrivals_as"),
    ],
)
async def test_measuring_says_what_is_wrong_beside_the_field(
    operator: httpx.AsyncClient, changes: dict[str, str], field: str
) -> None:
    sent = fields_of(await page_of(operator, MEASURE))
    sent |= {"pool": "default", "since": "2026-03-31T12:00", "until": "2026-03-31T13:00", "act": "look"}
    response = await operator.post(MEASURE, data=sent | {"arrivals_as": "fitted"} | changes)
    assert response.status_code == 400
    assert f'id="{field}-error"' in response.text


async def test_who_may_look_only_is_offered_and_let_do_nothing_else(viewer: httpx.AsyncClient) -> None:
    await save()
    assert "New or import" not in await page_of(viewer, WORKLOADS)
    assert "Delete" not in await page_of(viewer, f"{WORKLOADS}some/")
    for path in (NEW, MEASURE, f"{WORKLOADS}some/edit/"):
        await page_of(viewer, path, status=403)


@pytest.mark.parametrize("path", ["nothing/", "nothing/edit/", "nothing/file", "a%00b/"])
async def test_what_there_is_none_of_is_said_to_be_missing(operator: httpx.AsyncClient, path: str) -> None:
    await page_of(operator, f"{WORKLOADS}{path}", status=404)


@pytest.mark.parametrize("name", ["new", "measure"])
async def test_a_workload_may_be_called_as_a_page_is(operator: httpx.AsyncClient, name: str) -> None:
    await save(name=name)
    assert "10 a second, at random" in words(await page_of(operator, f"{WORKLOADS}{name}/"))
