"""What of the past the Live page shows, in a real browser: zoomed, shared, folded, explained and taken along."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.e2e.browsing import Console
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.model, pytest.mark.browser]

OpenConsole = Callable[..., Console]
A_WHILE_MS = 30_000
HAS_VALUES = """chart => Chart.getChart(document.querySelector(`[data-chart=${chart}] canvas`))
    .data.datasets[0].data.some(point => !Number.isNaN(point.y))"""
STARTS_AT = """([chart, start]) => Math.abs(Chart.getChart(document.querySelector(`[data-chart=${chart}] canvas`))
    .scales.x.min - start) <= 1"""
SPOKEN = re.compile(r"^Sequences, \d\d:\d\d:\d\d: running \d+, waiting \d+")
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"


def expect_live(page: Page) -> None:
    expect(page.locator("#badge")).to_have_attribute("data-state", "live", timeout=A_WHILE_MS)


def body(page: Page, chart: str) -> Any:
    return page.locator(f"[data-chart={chart}] .chart-body")


def crosshair(page: Page, chart: str) -> Any:
    return page.locator(f"[data-chart={chart}] .crosshair")


def asked_in(url: str) -> dict[str, str]:
    """The view that an address asks for."""
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


def drag(page: Page, chart: str, begin: float, end: float) -> None:
    """Drag over a chart from one share of its width to another."""
    body(page, chart).scroll_into_view_if_needed()
    box = body(page, chart).bounding_box()
    assert box is not None
    height = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + begin * box["width"], height)
    page.mouse.down()
    page.mouse.move(box["x"] + end * box["width"], height, steps=3)
    page.mouse.up()


def download_table(page: Page) -> tuple[str, list[list[str]]]:
    """The table's name and rows, as the open menu offers it."""
    with page.expect_download() as table:
        page.get_by_role("button", name="Table").click()
    with table.value.path().open(newline="", encoding="utf-8") as file:
        return table.value.suggested_filename, list(csv.reader(file))


def test_a_stretch_is_zoomed_into_on_all_charts_by_mouse_or_keys_and_shared_by_its_address(
    stack: Stack, console_page: OpenConsole
) -> None:
    page = console_page(stack).page
    expect_live(page)
    page.wait_for_function(HAS_VALUES, arg="sequences")
    drag(page, "sequences", 0.5, 0.75)
    expect(page.locator("#stretch")).to_be_visible()
    address = asked_in(page.url)
    start, end = int(address["from"]), int(address["to"])
    assert 50 < end - start < 120
    for chart in ("sequences", "ttft", "lanes", "priorities"):
        page.wait_for_function(STARTS_AT, arg=[chart, start])
    shared = page.url
    page.get_by_role("button", name="Back to live").click()
    expect(page.locator("#stretch")).to_be_hidden()
    assert "from" not in asked_in(page.url)
    page.get_by_role("button", name="Pause").click()
    page.wait_for_function("() => /[?&]at=\\d+/.test(location.search)")
    page.goto(shared)
    expect_live(page)
    expect(page.locator("#stretch")).to_be_visible()
    page.wait_for_function(STARTS_AT, arg=["itl", start])

    body(page, "sequences").press("Escape")
    expect(page.locator("#stretch")).to_be_hidden()
    page.keyboard.press("ArrowLeft")
    for chart in ("sequences", "priorities", "ttft"):
        expect(crosshair(page, chart)).to_be_visible()
    expect(page.locator("#chart-said")).to_have_text(SPOKEN)
    for key in ("+", "Shift+ArrowLeft"):
        page.keyboard.press(key)
    expect(page.locator("#stretch")).to_be_visible()
    expect(crosshair(page, "itl")).to_be_visible()
    address = asked_in(page.url)
    assert 140 <= int(address["to"]) - int(address["from"]) <= 160
    page.keyboard.press("Escape")
    expect(crosshair(page, "sequences")).to_be_hidden()
    page.keyboard.press("Escape")
    expect(page.locator("#stretch")).to_be_hidden()


def test_groups_fold_charts_hide_terms_are_explained_and_a_longer_past_is_taken_along(
    stack: Stack, console_page: OpenConsole
) -> None:
    console = console_page(stack)
    page = console.page
    expect_live(page)
    # Of a time that holds no other test's refusals, as only the most frequent have lines of their own.
    page.locator("#span label", has_text="1 m").click()
    page.wait_for_function("() => location.search.includes('span=60')")
    for _ in range(20):
        refused = httpx.get(f"{stack.url}/v1/models", headers={"Authorization": "Bearer of nobody"})
        assert refused.status_code == 401
    # What is out of sight is not drawn.
    page.locator("[data-chart=refusals]").scroll_into_view_if_needed()
    legend = page.locator("[data-chart=refusals] dt", has_text="invalid api key (any pool)")
    expect(legend).to_be_visible(timeout=A_WHILE_MS)
    for chart in ("utilisation_by_engine", "memory_by_engine"):
        expect(page.locator(f"[data-chart={chart}]")).to_be_hidden()
    page.locator("[data-group=load] summary").click()
    expect(page.locator("[data-chart=sequences]")).to_be_hidden()
    page.get_by_role("button", name="Charts", exact=True).click()
    page.get_by_role("checkbox", name="Step time").uncheck()
    assert console.accessibility_problems("#choose-charts") == []
    page.keyboard.press("Escape")
    page.locator("#span label", has_text="1 h").click()
    page.wait_for_function("() => location.search.includes('span=3600')")
    expect(page.locator("[data-chart=step_time]")).to_be_hidden()
    page.reload()
    expect_live(page)
    asked = asked_in(page.url)
    assert {name: asked[name] for name in ("folded", "hidden", "span")} == {
        "folded": "load",
        "hidden": "step_time",
        "span": "3600",
    }
    for chart in ("sequences", "step_time"):
        expect(page.locator(f"[data-chart={chart}]")).to_be_hidden()

    page.locator("[data-chart=ttft]").get_by_role("button", name="What is TTFT?").press("Enter")
    note = page.locator("[data-chart=ttft] .term-note")
    expect(note).to_have_text(re.compile("from a request's arrival until its first token is sent"))
    expect(note).to_be_visible()
    assert console.accessibility_problems("[data-chart=ttft]") == []
    page.keyboard.press("Escape")
    expect(note).to_be_hidden()

    expect(page.locator("#past-note")).to_have_text("Percentiles over 10 s each", timeout=A_WHILE_MS)
    page.locator("[data-chart=kv]").scroll_into_view_if_needed()
    page.wait_for_function(HAS_VALUES, arg="kv")
    page.get_by_role("button", name="Export", exact=True).click()
    with page.expect_download() as picture:
        page.get_by_role("button", name="Picture").click()
    assert picture.value.path().read_bytes().startswith(PNG_SIGNATURE)
    _, (header, *_rows) = download_table(page)
    assert {"Sequences: running", "Waiting tokens: long", "Step time: mean (s)"} <= set(header)
    which = page.get_by_label("Of the time in view")
    which.select_option(label="Step time (hidden)")
    page.get_by_role("button", name="Picture").click()
    expect(page.locator("#export-problem")).to_contain_text("It is not open")
    which.select_option("kv")
    expect(page.locator("#export-problem")).to_be_hidden()
    name, (header, *rows) = download_table(page)
    assert re.fullmatch(r"default-kv-\d{4}-\d\d-\d\dT\d{6}Z\.csv", name)
    assert header == ["time", "KV memory: in use", "KV memory: cached", "KV memory: free"]
    known = [row for row in rows if row[1]]
    assert sum(map(float, known[-1][1:])) == pytest.approx(1, abs=0.01)
