"""Runs side by side: what the page says of two sides, and why it says nothing of others."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec
import numpy as np
import pytest

from serving.contracts.errors import Unavailable
from serving.lab.models import Run, State
from serving.lab.packing import pack_outcomes
from serving.lab.recording import Gauges, Recorder
from serving.lab.summaries import Outcome
from serving.lab.workloads.arrivals import Poisson
from serving.lab.workloads.codec import workload_to_dict
from serving.lab.workloads.distributions import Fixed
from serving.lab.workloads.workload import RequestClass, Slo, Workload
from tests.dashboard.tenancy import in_thread, page_of, words

COMPARE = "/console/lab/runs/compare/"
CLASS = RequestClass(name="a", prompt_tokens=Fixed(10), output_tokens=Fixed(20), slo=Slo(ttft_ms=1000))
WORKLOAD = Workload(name="w", arrivals=Poisson(2.0), classes=(CLASS,), duration_seconds=100.0)


async def keep(*, seed: int = 1, ttft: float = 0.3, workload: Workload = WORKLOAD, **changes: Any) -> int:
    """The number of a finished run of 200 requests with that median TTFT."""
    rng = np.random.default_rng(seed)
    recorder = Recorder(workload)
    for index in range(200):
        recorder.note_gap("a", seconds=0.02, at_seconds=index / 2, count=19)
        recorder.end(
            Outcome(
                index=index,
                request_class="a",
                tenant="",
                due_seconds=index / 2,
                end_seconds=index / 2 + 1,
                ending="finished",
                num_prompt_tokens=10,
                num_output_tokens=20,
                is_streamed=True,
                ttft_seconds=ttft * float(np.exp(0.3 * rng.standard_normal())),
                tpot_seconds=0.02,
                e2e_seconds=1.0,
            )
        )
    recorder.note_gauges(50.0, Gauges(busy_ratio=0.5, host_memory_bytes=2**30))
    values: dict[str, Any] = {
        "title": f"<i>run</i> {seed}",
        "workload": workload_to_dict(msgspec.structs.replace(workload, seed=seed)),
        "target": {"url": "http://127.0.0.1:8000", "model": "m", "pool": "default"},
        "pool": "default",
        "tunables": {"max_running": 32},
        "tunables_version": 1,
        "author": "ann",
        "state": State.FINISHED,
        "summary": msgspec.to_builtins(recorder.summary(wall_seconds=100)),
        "outcomes": pack_outcomes(recorder.outcomes),
    }
    run = await in_thread(Run.objects.create)(**{**values, **changes})
    return int(run.pk)


def asked(*numbers: object) -> str:
    return COMPARE + "?" + "&".join(f"runs={number}" for number in numbers)


@pytest.mark.heavy
async def test_a_real_difference_is_marked_in_words_and_others_are_not(viewer: httpx.AsyncClient) -> None:
    slow, fast = await keep(seed=1), await keep(seed=2, ttft=0.15, tunables={"max_running": 64}, tunables_version=2)
    page = await page_of(viewer, asked(fast, slow))
    told = words(page)
    assert "max_running: 32 → 64" in told
    assert "figures differ by more than chance: TTFT" in told
    row = told[told.index("TTFT p95 ms") :]
    assert " better " in row[: row.index("TTFT p99")]
    row = told[told.index("TPOT mean ms") :]
    assert "no real difference" in row[: row.index("TPOT p50")]
    assert "not judged: one run tells no spread: play it again" in told
    assert "not judged: too few requests: 200" in told
    assert "At least one side is a single run" in told
    assert "<i>run" not in page


@pytest.mark.heavy
async def test_repeats_make_a_side_and_are_judged_as_runs(viewer: httpx.AsyncClient) -> None:
    first = [await keep(seed=seed) for seed in (1, 2, 3)]
    second = [await keep(seed=seed, tunables={"max_running": 64}) for seed in (1, 2, 3)]
    answer = await viewer.get(asked(*first, *second) + "&format=json")
    found = answer.json()
    assert (found["first"], found["second"]) == (first, second)
    assert found["differing"] == ["max_running: 32 → 64"]
    comparison = found["comparison"]
    assert comparison["knows_noise"]
    assert not any(each["is_real"] for each in comparison["differences"])
    names = {each["name"]: each for each in comparison["differences"]}
    assert {"ITL p95", "TTFT mean", "Output", "Goodput", "Refused", "Engine busy", "Host memory, peak"} <= set(names)
    assert names["ITL p95"]["not_judged"] == ""


@pytest.mark.heavy
async def test_two_runs_under_one_setting_are_a_side_each(viewer: httpx.AsyncClient) -> None:
    told = words(await page_of(viewer, asked(await keep(seed=1), await keep(seed=2))))
    assert "Nothing that is known: the same workload" in told
    assert "differs by more than chance" in told


async def test_what_cannot_be_compared_is_said(viewer: httpx.AsyncClient) -> None:
    one = await keep(seed=1)
    other = await keep(seed=2, workload=msgspec.structs.replace(WORKLOAD, name="x"))
    stricter = msgspec.structs.replace(CLASS, slo=Slo(ttft_ms=10))
    stricter_run = await keep(seed=3, workload=msgspec.structs.replace(WORKLOAD, classes=(stricter,)))
    playing = await keep(seed=4, state=State.RUNNING, summary=None, outcomes=None)
    bare = await keep(seed=5, state=State.FAILED, summary=None, outcomes=None)
    repeats = [await keep(seed=seed) for seed in (6, 7)]
    wider = await keep(seed=8, tunables={"max_running": 64})
    widest = await keep(seed=9, tunables={"max_running": 96})
    for numbers, said in (
        ((), "not '0 of them'"),
        ((one,), "runs must be 2 to 40, not '1 of them'"),
        ((one, one), "not '1 of them'"),
        ((one, "first"), "numbers of runs, not 'first'"),
        ((one, 99_999), "not 'run 99999'"),
        ((one, 2**31 - 1), "it was deleted, or never was"),
        ((one, playing), f"runs must be over, not 'run {playing}, which is running'"),
        ((one, bare), f"runs with figures, not 'run {bare}"),
        ((one, other), "of one workload: figures of two say nothing of a setting, not 'w and x'"),
        ((one, stricter_run), "its classes differ"),
        ((one, *repeats), "3 under one setting"),
        ((one, wider, widest), f"3 under 3 settings ({one}; {wider}; {widest})"),
    ):
        told = words(await page_of(viewer, asked(*numbers), status=400))
        assert said in told, numbers
        assert "Choose other runs" in told


async def test_what_cannot_be_compared_is_said_in_json_too(viewer: httpx.AsyncClient) -> None:
    answer = await viewer.get(asked(1) + "&format=json")
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "runs"


async def test_only_runs_with_figures_can_be_chosen(viewer: httpx.AsyncClient) -> None:
    run, waiting = await keep(), await keep(state=State.WAITING, summary=None, outcomes=None)
    page = await page_of(viewer, "/console/lab/runs/")
    assert f'name="runs" value="{run}"' in page
    assert f'name="runs" value="{waiting}"' not in page
    assert f'action="{COMPARE}"' in page


@pytest.mark.parametrize("form", ["page", "json"])
async def test_a_comparison_whose_process_is_ended_asks_to_be_asked_again(
    viewer: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    def end(*_: object) -> None:
        raise Unavailable("its process was ended")

    monkeypatch.setattr("dashboard.lab.compare.compare_elsewhere", end)
    answer = await viewer.get(f"{asked(await keep(seed=1), await keep(seed=2))}&format={form}")
    assert answer.status_code == 503
    assert "its process was ended" in answer.text
