"""The seven steps in a real browser: a run on a real engine becomes the evidence of its step."""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import expect

from tests.e2e.browsing import Console
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.model, pytest.mark.browser]

OpenConsole = Callable[..., Console]
LAB = "/console/lab/"
A_WHILE_MS = 60_000
WORKLOAD = {
    "name": "for-the-steps",
    "arrivals": {"kind": "closed_loop", "clients": 2},
    "classes": [
        {
            "name": name,
            "prompt_tokens": {"kind": "fixed", "tokens": tokens},
            "output_tokens": {"kind": "uniform", "low": 4, "high": 12},
        }
        for name, tokens in (("short", 8), ("long", 40))
    ],
    "duration_seconds": 3,
}


def test_a_run_becomes_evidence_of_two_steps_and_can_be_run_again(stack: Stack, console_page: OpenConsole) -> None:
    console = console_page(stack, f"{LAB}new-workload/")
    page = console.page
    page.get_by_text("As JSON, or from a file").click()
    page.get_by_label("The whole workload as JSON").fill(json.dumps(WORKLOAD))
    page.get_by_role("button", name="Store this JSON").click()
    expect(page.get_by_role("heading", name="for-the-steps")).to_be_visible()
    page.goto(f"{stack.url}{LAB}runs/new/?pool=default&workload=for-the-steps")
    page.get_by_role("button", name="Order the run").click()
    expect(page.locator("#run-state")).to_have_text("finished", timeout=A_WHILE_MS)
    run_path = page.url.removeprefix(stack.url)
    page.get_by_role("link", name="Seven steps").click()
    engines = page.locator(".lab-engines")
    for name in ("model", "processor", "threads", "Footplate", "PyTorch"):
        expect(engines.get_by_text(name, exact=True)).to_be_visible()
    for number in (4, 5):
        evidence = page.locator(f"#step-{number}")
        expect(evidence).to_have_attribute("data-state", "done")
        expect(evidence.locator(f'a[href="{run_path}"]').first).to_be_visible()
        for part in ("output tokens/s", "queue time p95", "TTFT p95", "peak memory"):
            expect(evidence).to_contain_text(part)
    last = page.locator("#step-7")
    expect(last).to_contain_text("measured on this")
    console.check("light", "dark")
    number = run_path.removesuffix("/").rpartition("/")[2]
    expect(last.locator(f'form input[name="result"][value="run {number}"]')).to_have_count(1)
    stack.wait_until_idle()
    assert console.complaints == []


def test_lengths_are_measured_from_the_engines_own_requests(stack: Stack, console_page: OpenConsole) -> None:
    body = {"model": "SmolLM2-135M-Instruct", "prompt": "One two three", "max_tokens": 4}
    for _ in range(3):
        answer = httpx.post(f"{stack.url}/v1/completions", json=body, headers=stack.headers, timeout=60)
        assert answer.status_code == 200, answer.text
    stack.wait_until_settled()
    console = console_page(stack, f"{LAB}measure-workload/?pool=default")
    page = console.page
    expect(page.get_by_label("Pool")).to_have_value("default")
    page.get_by_label("Name").fill("of-this-pool")
    soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=2)
    page.get_by_label("Until").fill(f"{soon:%Y-%m-%dT%H:%M}")
    page.get_by_role("button", name="Look at it").click()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("The workload of-this-pool is stored")).to_be_visible()
    page.get_by_role("link", name="Seven steps").click()
    lengths = page.locator("#step-1")
    expect(lengths).to_have_attribute("data-state", "done")
    expect(lengths).to_contain_text("of-this-pool, from")
    lengths.get_by_role("link", name="Look at it").click()
    expect(page.get_by_role("heading", name="of-this-pool")).to_be_visible()
    assert console.complaints == []
