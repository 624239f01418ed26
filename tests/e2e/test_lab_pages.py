"""The Lab in a real browser on a real engine: a run is ordered, watched and read, and every page is for everybody."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.browsing import Console, open_console
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.model, pytest.mark.browser]

OpenConsole = Callable[..., Console]
LAB = "/console/lab/"
A_WHILE_MS = 60_000
WORKLOAD = {
    "name": "tiny",
    "arrivals": {"kind": "closed_loop", "clients": 2},
    "classes": [
        {
            "name": "short",
            "prompt_tokens": {"kind": "fixed", "tokens": 8},
            "output_tokens": {"kind": "uniform", "low": 4, "high": 12},
            "slo": {"ttft_ms": 60000},
        }
    ],
    "duration_seconds": 4,
}


def test_a_workload_is_written_played_watched_and_read(stack: Stack, console_page: OpenConsole) -> None:
    console = console_page(stack, f"{LAB}new-workload/")
    page = console.page
    page.get_by_text("As JSON, or from a file").click()
    page.get_by_label("The whole workload as JSON").fill(json.dumps(WORKLOAD))
    page.get_by_role("button", name="Store this JSON").click()
    expect(page.get_by_role("heading", name="tiny")).to_be_visible()
    page.get_by_role("link", name="Runs").click()
    page.get_by_role("link", name="New run").click()
    page.get_by_label("Workload").select_option("tiny")
    page.get_by_role("button", name="Order the run").click()
    expect(page.get_by_role("heading", name="tiny on default")).to_be_visible()
    run_path = page.url
    expect(page.locator("#run-state")).to_have_text("finished", timeout=A_WHILE_MS)
    expect(page.get_by_role("region", name="Percentiles: All requests")).to_contain_text("TTFT")
    expect(page.locator("#run-charts figure").first).to_be_visible()
    expect(page.get_by_text("100.0% within the SLO")).to_be_visible()
    with page.expect_download() as caught:
        page.get_by_role("link", name="JSON", exact=True).click()
    report = json.loads(caught.value.path().read_text())
    assert report["summary"]["total"]["num_finished"] > 0
    assert report["summary"]["total"]["num_failed"] == 0
    page.goto(run_path)
    check_it_is_for_everybody(console)
    page.set_viewport_size({"width": 1440, "height": 800})
    page.get_by_role("button", name="Run again").click()
    expect(page.get_by_text("The run waits for its turn")).to_be_visible()
    assert page.url != run_path
    expect(page.locator("#run-state")).to_have_text("finished", timeout=A_WHILE_MS)
    page.get_by_role("link", name="Runs").first.click()
    page.get_by_label("Workload").select_option("tiny")
    page.get_by_role("button", name="Show").click()
    choices = page.get_by_role("checkbox", name="Compare run")
    expect(choices).to_have_count(2)
    for choice in choices.all():
        choice.check()
    check_it_is_for_everybody(console)
    page.set_viewport_size({"width": 1440, "height": 800})
    page.get_by_role("button", name="Compare the chosen").click()
    expect(page.get_by_role("heading", name="Runs compared: tiny")).to_be_visible()
    expect(page.get_by_role("region", name="Latency, side by side")).to_contain_text("TTFT p95")
    check_it_is_for_everybody(console)
    assert console.complaints == []
    page.goto(f"{stack.url}{LAB}runs/compare/?runs=1")
    expect(page.get_by_role("alert")).to_contain_text("runs must be 2 to 40")
    check_it_is_for_everybody(console)
    console.forgive("status of 400")
    stack.wait_until_idle()


def check_it_is_for_everybody(console: Console) -> None:
    """In light and dark, wide and narrow."""
    for scheme in ("light", "dark"):
        console.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        for width in (1440, 360):
            console.page.set_viewport_size({"width": width, "height": 800})
            assert console.accessibility_problems() == []
            assert console.page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_accessible_and_fits(browser: Browser, stack: Stack, scheme: str) -> None:
    console = open_console(browser, stack, f"{LAB}runs/", scheme=scheme)
    paths = ("", "runs/", "runs/new/", "workloads/", "workloads/rag/", "new-workload/", "measure-workload/")
    experiments = ("sweeps/", "sweeps/new/", "overloads/", "overloads/new/", "three-ways/", "three-ways/new/")
    predictions = ("predictions/", "predictions/new/")
    for path in (*paths, *experiments, *predictions, "autopilot/", "autopilot/default/"):
        console.page.goto(stack.url + LAB + path)
        for width in (1440, 360):
            console.page.set_viewport_size({"width": width, "height": 800})
            assert console.accessibility_problems() == [], path
            assert console.page.evaluate("document.documentElement.scrollWidth") <= width, path
    console.page.context.close()
    assert console.complaints == []
