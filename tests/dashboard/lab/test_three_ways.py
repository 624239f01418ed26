"""The pages about the three ways of batching: what they explain, ordering a comparison, and reading it."""

from __future__ import annotations

import re
from typing import Any

import httpx
import msgspec
import pytest

from dashboard.lab.three_ways_pictures import draw, example_of
from serving.audit.models import AuditEvent
from serving.lab.experiments.pictures import Picture, Stretch
from serving.lab.experiments.three_ways import play_three_ways
from serving.lab.experiments.three_ways_plan import WAYS, ThreeWaysPlan, WayName
from serving.lab.experiments.three_ways_results import ThreeWaysResult
from serving.lab.models import Experiment
from tests.dashboard.tenancy import errors_of, fields_of, in_thread, page_of, submit, words
from tests.lab.experiments.sweeping import FormulaBench, a_workload
from tests.lab.experiments.test_three_ways import by_mode

THREE_WAYS = "/console/lab/three-ways/"
NEW = f"{THREE_WAYS}new/"
PLAN = ThreeWaysPlan(workload=a_workload(), settle_seconds=0)


async def keep(**changes: Any) -> Experiment:
    values = {"kind": "three_ways", "pool": "default", "title": "Three ways of batching with chat", "author": "ada"}
    plan = msgspec.to_builtins(changes.pop("three_ways", PLAN))
    kept: Experiment = await in_thread(Experiment.objects.create)(**{**values, "plan": plan, **changes})
    return kept


def a_result(picture: Picture | None = None) -> dict[str, Any]:
    found = play_three_ways(PLAN, FormulaBench(by_mode))
    ways = tuple(msgspec.structs.replace(each, picture=picture) for each in found.ways)
    return dict(msgspec.to_builtins(msgspec.structs.replace(found, ways=ways)))


async def test_the_list_explains_the_three_ways_in_words_and_pictures(steerer: httpx.AsyncClient) -> None:
    page = await page_of(steerer, THREE_WAYS)
    said = words(page)
    for expected in ("runs until its longest answer is done", "wait a moment for company", "between any two steps"):
        assert expected in said
    assert page.count('<svg class="way-picture"') == 3
    assert "No comparison yet." in said
    assert NEW in page


async def test_the_list_says_what_came_of_each(viewer: httpx.AsyncClient) -> None:
    await keep(state="finished", result=a_result())
    await keep(state="failed", error="somebody stored version 9 meanwhile")
    said = words(await page_of(viewer, THREE_WAYS))
    assert "TTFT p95 4.0 times as much" in said
    assert "somebody stored version 9 meanwhile" in said


async def test_a_comparison_is_ordered_and_audited(steerer: httpx.AsyncClient) -> None:
    response = await submit(
        steerer, NEW, workload="chat", seconds="20", repeats="2", static_window_ms="500", window_ms="100", way="played"
    )
    assert response.status_code == 302, errors_of(response.text)
    kept = await in_thread(Experiment.objects.get)()
    assert response.headers["location"] == f"{THREE_WAYS}{kept.pk}/"
    plan = msgspec.convert(kept.plan, type=ThreeWaysPlan)
    assert (plan.static_window_ms, plan.window_ms, plan.repeats, plan.way) == (500.0, 100.0, 2, "played")
    assert plan.workload.duration_seconds == 20.0
    assert (await in_thread(AuditEvent.objects.get)(action="experiment ordered")).actor == "ann"


@pytest.mark.parametrize(
    ("typed", "field"),
    [
        ({"repeats": "none"}, "repeats"),
        ({"repeats": "11"}, "repeats"),
        ({"seconds": "-1"}, "seconds"),
        ({"window_ms": "0"}, "window_ms"),
        ({"static_window_ms": "long"}, "static_window_ms"),
        ({"settle_seconds": "301"}, "settle_seconds"),
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


async def test_a_running_comparison_shows_how_far_it_is(viewer: httpx.AsyncClient) -> None:
    kept = await keep(state="running", progress={"doing": "static, 2 of 3", "num_done": 4})
    page = await page_of(viewer, f"{THREE_WAYS}{kept.pk}/part/")
    assert "It plays static, 2 of 3." in words(page)
    assert '<progress max="9" value="4"' in page


async def test_a_finished_comparison_shows_figures_side_by_side_and_the_steps_of_its_run(
    viewer: httpx.AsyncClient,
) -> None:
    picture = Picture(
        first_step=1041,
        num_steps=4,
        slots=((Stretch(1, 0, 0, 0), Stretch(1, 1, 3, 1)), (Stretch(2, 0, 1, 1),)),
        num_waiting=(0, 0, 0, 0),
        milliseconds=(9.0, 9.0, 9.0, 9.0),
        num_hidden_slots=3,
    )
    kept = await keep(state="finished", result=a_result(picture))
    page = await page_of(viewer, f"{THREE_WAYS}{kept.pk}/")
    said = words(page)
    for expected in (
        "Static batching against continuous batching, on the same requests: TTFT p50 4.0 times as much",
        "400 ± 0.00 4.00 ×",
        "Steps 1,041 to 1,044 of the engine's own; 3 more places are not shown.",
        "2 places over 4 steps, 2 sequences, 25% of the places empty",
    ):
        assert expected.lower() in said.lower()
    bars = re.findall(r'<rect class="way-bar-mean" x="0" y="1" width="([\d.]+)"', page)
    assert bars[:3] == ["120.0", "105.0", "30.0"]


async def test_a_result_is_a_file_too(viewer: httpx.AsyncClient) -> None:
    kept = await keep(state="finished", result=a_result())
    response = await viewer.get(f"{THREE_WAYS}{kept.pk}/file")
    assert len(msgspec.convert(response.json()["result"], type=ThreeWaysResult).ways) == 3
    assert (await viewer.get(f"{THREE_WAYS}{kept.pk + 1}/file")).status_code == 404


async def test_who_may_only_look_orders_and_stops_nothing(viewer: httpx.AsyncClient) -> None:
    kept = await keep(state="running")
    assert (await viewer.get(NEW)).status_code == 403
    assert "Stop" not in await page_of(viewer, f"{THREE_WAYS}{kept.pk}/")
    assert (await viewer.post(f"{THREE_WAYS}{kept.pk}/stop")).status_code == 403


async def test_a_comparison_is_stopped_by_who_may(steerer: httpx.AsyncClient) -> None:
    kept = await keep(state="running")
    page = await page_of(steerer, f"{THREE_WAYS}{kept.pk}/")
    stop = f"{THREE_WAYS}{kept.pk}/stop"
    assert (await steerer.post(stop, data=fields_of(page, action=stop))).status_code == 302
    assert (await in_thread(Experiment.objects.get)(pk=kept.pk)).stop_asked


@pytest.mark.parametrize("way", WAYS)
def test_an_example_serves_every_request_once_and_no_place_twice_at_once(way: WayName) -> None:
    picture = example_of(way)
    assert {stretch.sequence for slot in picture.slots for stretch in slot} == set(range(1, 10))
    for slot in picture.slots:
        taken = [step for stretch in slot for step in range(stretch.first, stretch.last + 1)]
        assert len(taken) == len(set(taken))


def test_the_example_shows_what_each_way_costs() -> None:
    static, windowed, continuous = (example_of(way) for way in WAYS)
    assert static.empty_share > windowed.empty_share
    assert static.num_steps > windowed.num_steps >= continuous.num_steps
    assert sum(begin_of(windowed).values()) > sum(begin_of(continuous).values())


def begin_of(picture: Picture) -> dict[int, int]:
    firsts: dict[int, int] = {}
    for slot in picture.slots:
        for stretch in slot:
            firsts[stretch.sequence] = min(stretch.first, firsts.get(stretch.sequence, stretch.first))
    return firsts


def test_a_drawing_stays_within_its_bounds() -> None:
    drawing = draw(example_of("continuous"), note="")
    assert all(
        cell.x + cell.width <= drawing.width and cell.y + cell.height <= drawing.height for cell in drawing.cells
    )
