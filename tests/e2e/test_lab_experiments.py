"""Overload tests and the three ways of batching in a real browser: ordered, played in place on a real engine or on the
simulator, and read by everybody."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.e2e.browsing import Console
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.model, pytest.mark.browser]

OpenConsole = Callable[..., Console]
LAB = "/console/lab/"
A_WHILE_MS = 180_000
WORKLOAD = {
    "name": "few",
    "arrivals": {"kind": "closed_loop", "clients": 6},
    "classes": [
        {
            "name": "short",
            "prompt_tokens": {"kind": "uniform", "low": 8, "high": 40},
            "output_tokens": {"kind": "uniform", "low": 2, "high": 24},
            "slo": {"ttft_ms": 60000},
        }
    ],
    "duration_seconds": 4,
}


def store_workload(console: Console) -> None:
    console.page.get_by_text("As JSON, or from a file").click()
    console.page.get_by_label("The whole workload as JSON").fill(json.dumps(WORKLOAD))
    console.page.get_by_role("button", name="Store this JSON").click()
    expect(console.page.get_by_role("heading", name="few")).to_be_visible()


def check_for_everybody(console: Console) -> None:
    page = console.page
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        for width in (1440, 360):
            page.set_viewport_size({"width": width, "height": 800})
            assert console.accessibility_problems() == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width


def downloaded(console: Console) -> dict[str, Any]:
    with console.page.expect_download() as caught:
        console.page.get_by_role("link", name="As JSON").click()
    result: dict[str, Any] = json.loads(caught.value.path().read_text())["result"]
    return result


def test_the_three_ways_are_compared_in_place_and_the_pool_goes_back(stack: Stack, console_page: OpenConsole) -> None:
    console = console_page(stack, f"{LAB}new-workload/")
    page = console.page
    store_workload(console)
    page.get_by_role("link", name="Three ways").click()
    page.get_by_role("link", name="Compare them here").click()
    page.get_by_label("Workload").select_option("few")
    page.get_by_label("Seconds each time").fill("4")
    page.get_by_label("Times each").fill("1")
    page.get_by_label("Settle after each change (s)").fill("0")
    page.get_by_label("On the engines, in place").check()
    page.get_by_role("button", name="Order the comparison").click()
    expect(page.get_by_text("What each way costs")).to_be_visible(timeout=A_WHILE_MS)
    expect(page.locator("svg.way-picture")).to_have_count(3)
    expect(page.get_by_text("of the engine's own")).to_have_count(3)
    ways = {way["name"]: way for way in downloaded(console)["ways"]}
    assert ways["static"]["num_idle_slot_steps"] > 0
    assert ways["continuous"]["num_idle_slot_steps"] == 0
    assert all(way["num_failed"] == 0 and way["num_requests"] > 0 for way in ways.values())
    check_for_everybody(console)
    page.goto(f"{stack.url}/console/tuning/")
    expect(page.get_by_text("ended: back to version").first).to_be_visible()
    stack.wait_until_idle()


def test_an_overload_is_simulated_and_each_criterion_is_told(stack: Stack, console_page: OpenConsole) -> None:
    console = console_page(stack, f"{LAB}overloads/new/")
    page = console.page
    page.get_by_label("Workload").select_option("bulk")
    page.get_by_label("Seconds each").fill("30")
    page.get_by_role("button", name="Order the test").click()
    expect(page.get_by_role("heading", name="Criteria")).to_be_visible(timeout=A_WHILE_MS)
    expect(page.locator("#overload-charts canvas")).to_have_count(2)
    criteria = page.get_by_role("region", name="Table of criteria")
    expect(criteria).to_contain_text("The queue stays within max_queue_requests")
    assert {each["judged"] for each in downloaded(console)["verdicts"]} <= {"passed", "failed", "not judged"}
    check_for_everybody(console)
