"""`manage.py loadtest` against a server on loopback: what it prints, keeps and refuses."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from django.core.management import call_command
from django.core.management.base import CommandError
from redis import Redis

from serving.audit.models import AuditEvent
from serving.contracts import keys
from serving.contracts.ids import PoolName
from serving.contracts.messages import encode
from serving.contracts.tunables import Tunables
from serving.lab.models import Run
from serving.lab.workloads.codec import workload_to_json
from serving.lab.workloads.ready import READY
from serving.tuning.services import ensure_pool
from tests.lab.playing.answering import Server, answering, stream
from tests.telemetry.conftest import snapshot

pytestmark = [pytest.mark.heavy, pytest.mark.django_db]

QUICK = ("--requests=12", "--concurrency=3", "--prompt-tokens", "4", "8", "--output-tokens=5", "--model=m")


@pytest.fixture
def server() -> Iterator[Server]:
    """A server in a thread of its own: the command has the main one, and its signals."""
    started, ending = threading.Event(), asyncio.Event()
    found: list[Server] = []
    loops: list[asyncio.AbstractEventLoop] = []

    async def run() -> None:
        async with answering() as server:
            found.append(server)
            loops.append(asyncio.get_running_loop())
            started.set()
            await ending.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    assert started.wait(10)
    yield found[0]
    loops[0].call_soon_threadsafe(ending.set)
    thread.join()


@pytest.fixture
def own(server: Server, settings: Any, tmp_path: Path, valkey: str) -> Server:
    """The same, as if it were this server."""
    settings.HOST, settings.PORT = "127.0.0.1", int(server.url.rsplit(":", 1)[1])
    settings.FOOTPLATE_HOME, settings.FOOTPLATE_LAB_URL, settings.REDIS_URL = tmp_path, "", valkey
    (tmp_path / "first-run.json").write_text(json.dumps({"api_key": "ours"}))
    return server


def played(*arguments: str) -> str:
    out = io.StringIO()
    call_command("loadtest", *QUICK, *arguments, stdout=out, stderr=io.StringIO())
    return out.getvalue()


def test_it_prints_percentiles_and_rates(own: Server) -> None:
    said = played(f"--url={own.url}")
    assert "12 requests, 12 finished, measured over" in said
    assert "Output tokens/s" in said
    assert all(name in said for name in ("TTFT", "ITL", "TPOT", "E2E", "p50", "p99"))
    assert "Clients waited for their answers" in said
    assert {body["max_tokens"] for body in own.bodies} == {5}
    assert set(own.keys) == {"Bearer ours"}


def test_this_server_is_asked_how_long_requests_waited_without_a_pool_too(own: Server) -> None:
    report = json.loads(played(f"--url={own.url}", "--json"))
    assert report["summary"]["total"]["queue_ms"]["p50"] == 30.0
    assert all(body["timings"] and "pool" not in body for body in own.bodies)


def test_another_server_gets_neither_questions_nor_keys_of_this_one(server: Server) -> None:
    report = json.loads(played(f"--url={server.url}", "--json"))
    assert report["summary"]["total"]["num_finished"] == 12
    assert not any("timings" in body for body in server.bodies)
    assert set(server.keys) == {""}


def test_the_engines_of_this_server_tell_of_themselves_without_a_pool_too(
    own: Server, valkey: str, settings: Any
) -> None:
    async def slowly(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, body, pause=0.4)

    own.answer = slowly
    engine = snapshot(busy_ratio=0.5, rss_bytes=2**20, pool=PoolName("default"))
    with Redis.from_url(valkey) as redis:
        redis.zadd(keys.engines(engine.pool), {engine.engine_id: time.time()})
        redis.set(keys.heartbeat(engine.engine_id), encode(engine))
    model = settings.FOOTPLATE_POOLS["default"].model.name
    report = json.loads(played(f"--url={own.url}", f"--model={model}", "--json"))
    assert report["summary"]["peak_host_memory_bytes"] == 2**20
    assert report["summary"]["mean_busy_ratio"] == 0.5


def test_repeats_have_other_seeds_and_their_figures_intervals(own: Server) -> None:
    result = json.loads(played(f"--url={own.url}", "--repeats=3", "--seed=7", "--json"))
    assert [run["workload"]["seed"] for run in result["runs"]] == [7, 8, 9]
    assert [run["title"] for run in result["runs"]] == [f"Load test: quick ({n} of 3)" for n in (1, 2, 3)]
    figures = {each["name"]: each for each in result["figures"]}
    for name in ("TTFT p50", "ITL p95", "Output"):
        assert figures[name]["low"] <= figures[name]["value"] <= figures[name]["high"], name
    assert figures["TTFT p99"]["not_judged"] == "too few requests: 36"
    said = played(f"--url={own.url}", "--repeats=2")
    assert "2 runs together, 24 requests, with 95 % confidence intervals:" in said


def test_kept_runs_are_as_the_lab_keeps_them(own: Server) -> None:
    result = json.loads(played(f"--url={own.url}", "--repeats=2", "--save", "--json"))
    second, first = Run.objects.all()
    assert [run["run"] for run in result["runs"]] == [first.pk, second.pk]
    assert (first.state, first.workload["seed"], second.workload["seed"]) == ("finished", 1, 2)
    assert first.summary["total"]["num_finished"] == 12
    assert first.outcomes is not None
    assert first.target["is_keyed"]
    assert "ours" not in json.dumps(first.target)
    assert first.started_at < first.ended_at
    event = AuditEvent.objects.latest("pk")
    assert (event.action, event.subject, event.reason) == (
        "run ordered",
        str(second.pk),
        "played by a command, and kept",
    )
    assert f"(kept as run {second.pk + 1})" in played(f"--url={own.url}", "--save")


def test_nothing_is_kept_unless_it_is_asked_for(own: Server) -> None:
    assert '"run"' not in played(f"--url={own.url}", "--json")
    assert not Run.objects.exists()


def test_files_are_written_one_a_run(own: Server, tmp_path: Path) -> None:
    played(f"--url={own.url}", "--csv", str(tmp_path / "requests.csv"), "--course", str(tmp_path / "course.csv"))
    assert len(list(csv.DictReader((tmp_path / "requests.csv").open()))) == 12
    assert (tmp_path / "course.csv").read_text().startswith("at_seconds,")
    played(f"--url={own.url}", "--repeats=2", "--report", str(tmp_path / "report.html"))
    pages = [(tmp_path / f"report-{number}.html").read_text() for number in (1, 2)]
    assert ["(1 of 2)" in page for page in pages] == [True, False]
    assert all("new Chart(" in page for page in pages)


def test_how_late_requests_were_sent_is_told_of_open_arrivals(own: Server) -> None:
    said = played(f"--url={own.url}", "--rate=200")
    assert "Arrivals never waited for answers" in said
    assert "ms after it was due, or later" in said
    report = json.loads(played(f"--url={own.url}", "--rate=200", "--json"))
    assert report["summary"]["sent_late_p99_ms"] >= 0


def test_a_workload_is_played_by_name_and_from_a_file(own: Server, tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_bytes(workload_to_json(msgspec.structs.replace(READY["chat"], name="mine", warm_up_seconds=0.0)))
    for name, shown in (("chat", "chat"), (str(file), "mine")):
        report = json.loads(played(f"--url={own.url}", "--workload", name, "--rate-scale=100", "--json"))
        assert report["workload"]["name"] == shown
        assert report["summary"]["total"]["num_requests"] + report["summary"]["num_warm_up_requests"] == 12


def test_interrupted_it_shows_what_had_ended_and_plays_no_other(own: Server) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if len(own.bodies) == 7:
            os.kill(os.getpid(), signal.SIGINT)
        return await stream(request, body, pause=0.0 if len(own.bodies) < 7 else 30.0)

    own.answer = answer
    out = io.StringIO()
    with pytest.raises(CommandError, match="stopped before its end"):
        call_command("loadtest", *QUICK, f"--url={own.url}", "--repeats=3", "--save", stdout=out, stderr=io.StringIO())
    assert "The run was stopped before its end" in out.getvalue()
    assert len(own.bodies) < 12
    assert Run.objects.get().state == "stopped"


def test_on_a_pool_its_tunables_are_kept_too(own: Server) -> None:
    ensure_pool("default", "m")
    played(f"--url={own.url}", "--pool=default", "--save")
    run = Run.objects.get()
    assert (run.pool, run.tunables_version) == ("default", 1)
    assert run.tunables["max_running"] == Tunables().max_running
    assert {body["pool"] for body in own.bodies} == {"default"}


def test_a_server_that_refuses_everything_is_told_by_code(own: Server) -> None:
    async def full(_request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"code": "queue_full", "message": "full"}}, status=429)

    own.answer = full
    said = played(f"--url={own.url}")
    assert "refused: 12 x queue_full" in said


def test_a_server_that_is_not_there_is_a_failure_that_is_kept(own: Server) -> None:
    with pytest.raises(CommandError, match="every request failed; the first: broken: ClientConnectorError"):
        played("--url=http://127.0.0.1:9", "--save")
    run = Run.objects.get()
    assert run.state == "failed"
    assert run.error.startswith("no request finished: broken")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--resume=3",), "a run cannot be resumed"),
        (("--repeats=0",), "repeats must be a number from 1 to 20"),
        (("--repeats=21",), "repeats must be a number from 1 to 20"),
        (("--key-of=acme",), "key-of must be of the form TENANT=KEY"),
        (("--url=ftp://x",), "url must be an address"),
        (("--timeout=0",), "timeout must be"),
        (("--workload=nothing",), "nothing"),
        (("--requests=0", "--rate=0"), "rate"),
        (("--csv=/nowhere/at/all.csv", "--requests=1"), "/nowhere/at/all.csv cannot be written"),
    ],
)
def test_what_cannot_be_played_is_refused_in_words(own: Server, arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        played(f"--url={own.url}", *arguments)
