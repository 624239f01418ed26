"""The pages about runs: the list, ordering one, watching it, and its files."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from typing import Any

import httpx
import msgspec
import pytest

from dashboard.lab import runs as run_pages
from serving.audit.models import AuditEvent
from serving.contracts.errors import Unavailable
from serving.lab import fingerprints
from serving.lab.models import Run, State
from serving.lab.packing import pack_outcomes
from serving.lab.recording import Gauges, Recorder
from serving.lab.runs import services as run_services
from serving.lab.summaries import Outcome
from serving.lab.workloads.codec import workload_to_dict
from serving.lab.workloads.ready import READY
from tests.dashboard.tenancy import in_thread, page_of, submit, words

RUNS = "/console/lab/runs/"
NEW = f"{RUNS}new/"


@pytest.fixture(autouse=True)
def _nobody_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_services, "wake", lambda: None)


def recorded() -> Recorder:
    recorder = Recorder(READY["rag"])
    for index in range(40):
        at_seconds = 31.0 + index
        recorder.note_arrival(at_seconds=at_seconds)
        recorder.note_tokens(at_seconds=at_seconds, count=5, prompt_tokens=100)
        recorder.note_gap("chat", seconds=0.02, at_seconds=at_seconds)
        recorder.note_gauges(at_seconds, Gauges(num_running=3, kv_used_ratio=0.4, host_memory_bytes=2**30))
        recorder.end(
            Outcome(
                index=index,
                request_class="question" if index % 2 else "chat",
                tenant="=cmd()",
                due_seconds=at_seconds,
                end_seconds=at_seconds + 1,
                ending="refused" if index == 7 else "finished",
                code="queue_full" if index == 7 else "",
                num_prompt_tokens=100,
                num_output_tokens=5,
                is_streamed=True,
                ttft_seconds=0.25,
                tpot_seconds=0.02,
                e2e_seconds=1.0,
            )
        )
    return recorder


async def keep(**changes: Any) -> Run:
    recorder = recorded()
    values: dict[str, Any] = {
        "title": "<b>first</b>",
        "workload": workload_to_dict(READY["rag"]),
        "target": {"url": "http://127.0.0.1:8000", "model": "a-model", "pool": "default"},
        "pool": "default",
        "author": "ann",
        "state": State.FINISHED,
        "summary": msgspec.to_builtins(recorder.summary(wall_seconds=100)),
        "outcomes": pack_outcomes(recorder.outcomes),
    }
    return await in_thread(Run.objects.create)(**{**values, **changes})


async def test_without_a_run_the_list_leads_to_the_first(steerer: httpx.AsyncClient) -> None:
    page = await page_of(steerer, RUNS)
    assert "None yet." in words(page)
    assert NEW in page


async def test_the_list_has_a_line_a_run(viewer: httpx.AsyncClient) -> None:
    await keep()
    await keep(state=State.WAITING, summary=None, outcomes=None)
    page = words(await page_of(viewer, RUNS))
    assert "finished" in page
    assert "waiting" in page
    assert NEW not in page


async def test_a_run_is_told_in_figures_by_class(viewer: httpx.AsyncClient) -> None:
    run = await keep()
    page = await page_of(viewer, f"{RUNS}{run.pk}/")
    told = words(page)
    assert "40 requests, 39 finished, 1 refused" in told
    assert "Class question" in told
    assert "TTFT 250.0" in told
    assert "queue_full" in told
    assert "Peak memory, host 1,024 MiB" in told
    assert "<b>first" not in page


async def test_the_list_is_narrowed_and_stays_so_from_page_to_page(
    viewer: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_pages, "PAGE_SIZE", 2)
    chat = workload_to_dict(READY["chat"])
    for number in range(3):
        await keep(title=f"kept {number}", workload=chat)
    await keep(title="of another workload")
    await keep(title="of another pool", workload=chat, pool="spare")
    await keep(title="elsewhere", workload=chat, pool="")
    await keep(title="not over", workload=chat, state=State.WAITING, summary=None)
    page = await page_of(viewer, f"{RUNS}?workload=chat&pool=default&state=finished")
    told = words(page)
    assert "kept 2" in told
    assert "kept 1" in told
    assert not any(other in told for other in ("kept 0", "of another", "elsewhere", "not over"))
    older = html.unescape(re.search(r'href="([^"]*before=[^"]*)"', page)[1])  # type: ignore[index]
    assert "kept 0" in words(await page_of(viewer, older))
    assert 'value="chat" selected' in page
    others = words(await page_of(viewer, f"{RUNS}?pool=:other"))
    assert "elsewhere" in others
    assert "kept" not in others
    assert "No run matches." in words(await page_of(viewer, f"{RUNS}?workload=code"))


@pytest.mark.parametrize("query", ["state=done", "sort=ttft", f"workload={'x' * 101}"])
async def test_a_list_that_cannot_be_shows_nothing_and_says_why(viewer: httpx.AsyncClient, query: str) -> None:
    await keep(title="kept")
    told = words(await page_of(viewer, f"{RUNS}?{query}", status=400))
    assert query.split("=")[0] in told
    assert "kept" not in told.replace("that is kept", "")


async def test_a_run_is_shown_while_redis_is_away(viewer: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_arguments: Any) -> None:
        raise Unavailable("redis is away")

    monkeypatch.setattr(fingerprints, "living_engines", away)
    run = await keep()
    assert "40 requests" in words(await page_of(viewer, f"{RUNS}{run.pk}/"))


async def test_again_orders_the_very_same_requests(viewer: httpx.AsyncClient, steerer: httpx.AsyncClient) -> None:
    as_played = {**workload_to_dict(READY["rag"]), "seed": 77, "name": "rag", "duration_seconds": 111.0}
    run = await keep(workload=as_played, title="mine")
    assert (await viewer.post(f"{RUNS}{run.pk}/again")).status_code == 403
    response = await submit(steerer, f"{RUNS}{run.pk}/", at=f"{RUNS}{run.pk}/again")
    newest = await in_thread(Run.objects.first)()
    assert response.headers["location"] == f"{RUNS}{newest.pk}/"
    assert newest.pk != run.pk
    assert (newest.workload, newest.pool, newest.title) == (run.workload, "default", "mine")
    assert (newest.state, newest.summary, newest.author) == (State.WAITING, None, "ann")
    event = await in_thread(AuditEvent.objects.latest)("pk")
    assert (event.action, event.subject, event.reason) == ("run ordered", str(newest.pk), f"run {run.pk} again")


FOREIGN = {"url": "http://example.com", "model": "m", "prompts": "chat", "ignore_eos": False}


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ({"pool": "gone"}, "gone"),
        ({"pool": "", "target": {**FOREIGN, "is_keyed": True}}, "without a key: those of other servers are not kept"),
        ({"pool": "", "target": FOREIGN}, "FOOTPLATE_LOADTEST_HOSTS"),
    ],
)
async def test_again_says_why_it_cannot(steerer: httpx.AsyncClient, kept: dict[str, Any], said: str) -> None:
    run = await keep(**kept)
    response = await submit(steerer, f"{RUNS}{run.pk}/", at=f"{RUNS}{run.pk}/again")
    assert response.headers["location"] == f"{RUNS}{run.pk}/"
    told = words(await page_of(steerer, f"{RUNS}{run.pk}/"))
    assert "Nothing was ordered" in told
    assert said in told
    assert await in_thread(Run.objects.count)() == 1


async def test_again_goes_to_a_foreign_server_that_wants_no_key(steerer: httpx.AsyncClient, settings: Any) -> None:
    settings.FOOTPLATE_LOADTEST_HOSTS = ("example.com",)
    run = await keep(pool="", target=FOREIGN)
    await submit(steerer, f"{RUNS}{run.pk}/", at=f"{RUNS}{run.pk}/again")
    newest = await in_thread(Run.objects.first)()
    assert newest.pk != run.pk
    assert (newest.target["url"], newest.target["prompts"], newest.pool) == ("http://example.com", "chat", "")


async def test_ordered_it_waits_with_what_was_asked(steerer: httpx.AsyncClient) -> None:
    response = await submit(steerer, NEW, workload="chat", duration="40", rate_scale="0.5", repeats="2", seed="9")
    assert response.status_code == 302, words(response.text)
    newest, first = await in_thread(lambda: list(Run.objects.all()))()
    assert response.headers["location"] == f"{RUNS}{first.pk}/"
    assert (first.workload["duration_seconds"], first.workload["arrivals"]["rate"]) == (40, 0.25)
    assert (first.workload["seed"], newest.workload["seed"]) == (9, 10)
    assert first.author == "ann"


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"duration": "soon"}, "duration must be a number, not 'soon'"),
        ({"repeats": "99"}, "repeats must be a number from 1 to 20"),
        ({"workload": "nothing"}, "nothing"),
        ({"url": "http://example.com"}, "FOOTPLATE_LOADTEST_HOSTS"),
        ({"rate_scale": "-1"}, "rate scale"),
    ],
)
async def test_what_cannot_be_played_is_refused_and_stays_typed(
    steerer: httpx.AsyncClient, typed: dict[str, str], said: str
) -> None:
    usual = {"workload": "chat", "title": "my title", "model": "m"}
    response = await submit(steerer, NEW, **{**usual, **typed})
    assert response.status_code in (400, 404)
    assert said in words(response.text)
    assert "my title" in response.text
    assert await in_thread(Run.objects.count)() == 0


async def test_how_far_it_is_is_told_while_it_plays(viewer: httpx.AsyncClient) -> None:
    summary = recorded().summary(wall_seconds=100)
    progress = {
        "seconds": 12.0,
        "num_due": 30,
        "num_in_flight": 2,
        "num_ended": 28,
        "share": 0.4,
        "total": msgspec.to_builtins(summary.total),
        "moments": msgspec.to_builtins(summary.moments),
    }
    run = await keep(state=State.RUNNING, summary=None, outcomes=None, progress=progress)
    told = (await viewer.get(f"{RUNS}{run.pk}/state.json")).json()
    assert (told["state"], told["is_over"], told["share"], told["num_ended"]) == ("running", False, 0.4, 28)
    assert {plot["id"] for plot in told["plots"]} >= {"plot-throughput", "plot-ttft", "plot-itl"}


async def test_it_is_stopped_by_those_who_may(viewer: httpx.AsyncClient, steerer: httpx.AsyncClient) -> None:
    run = await keep(state=State.RUNNING, summary=None, outcomes=None)
    refused = await viewer.post(f"{RUNS}{run.pk}/stop")
    assert refused.status_code == 403
    response = await submit(steerer, f"{RUNS}{run.pk}/", at=f"{RUNS}{run.pk}/stop")
    assert response.status_code == 302
    await in_thread(run.refresh_from_db)()
    assert run.stop_asked


async def test_its_files_need_nothing_else(viewer: httpx.AsyncClient) -> None:
    run = await keep()
    page = (await viewer.get(f"{RUNS}{run.pk}/file/html")).text
    assert "https://" not in page.split("<script>")[0]
    assert "<b>first" not in page
    assert "new Chart(" in page
    report = (await viewer.get(f"{RUNS}{run.pk}/file/json")).json()
    assert report["summary"]["total"]["num_refused"] == 1
    assert report["workload"]["name"] == "rag"
    rows = list(csv.DictReader(io.StringIO((await viewer.get(f"{RUNS}{run.pk}/file/requests.csv")).text)))
    assert len(rows) == 40
    assert rows[7]["code"] == "queue_full"
    assert rows[0]["tenant"] == "'=cmd()"
    moments = (await viewer.get(f"{RUNS}{run.pk}/file/moments.csv")).text
    assert moments.startswith("at_seconds,seconds,num_arrived")


@pytest.mark.parametrize("path", ["77/", "77/state.json", "77/file/json"])
async def test_what_there_is_not_is_not_found(viewer: httpx.AsyncClient, path: str) -> None:
    assert (await viewer.get(f"{RUNS}{path}")).status_code == 404


async def test_a_run_without_figures_has_no_files(viewer: httpx.AsyncClient) -> None:
    run = await keep(state=State.WAITING, summary=None, outcomes=None)
    assert (await viewer.get(f"{RUNS}{run.pk}/file/json")).status_code == 404
    finished = await keep()
    assert (await viewer.get(f"{RUNS}{finished.pk}/file/exe")).status_code == 404


async def test_plots_are_json_that_cannot_end_a_script(viewer: httpx.AsyncClient) -> None:
    run = await keep(title="</script><script>alert(1)</script>")
    page = (await viewer.get(f"{RUNS}{run.pk}/file/html")).text
    assert "<script>alert(1)" not in page
    assert json.loads(page.split('id="plots">')[1].split("</script>")[0])
