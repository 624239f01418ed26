"""The Live page in a real browser, over a real engine: an operator watches it, moves its levers, and loses the line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.config.toys import wait_for
from tests.e2e.browsing import Console
from tests.e2e.load import load
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.model, pytest.mark.browser]

OpenConsole = Callable[..., Console]
CHARTS = [
    *("sequences", "lanes", "waiting_tokens", "ttft", "itl", "e2e", "queue_time", "tokens", "step_tokens", "step_time"),
    *("utilisation", "preemptions", "guesses_kept", "kv", "prefix_hits", "memory", "goodput", "unanswered"),
]
ALL_IN_SIGHT = (1440, 2800)
A_WHILE_MS = 30_000
IN_FORCE = re.compile(r"^version (\d+) in force$")
HAS_MANY_VALUES = """chart => Chart.getChart(document.querySelector(`[data-chart=${chart}] canvas`))
    .data.datasets[0].data.filter(point => !Number.isNaN(point.y)).length > 10"""
A_DURATION = re.compile(r"\d m?s")
SOME_TEXT = re.compile(r"\w[^\w]+\w")


def expect_live(page: Page) -> None:
    expect(page.locator("#badge")).to_have_attribute("data-state", "live", timeout=A_WHILE_MS)


def tile(page: Page, name: str) -> Any:
    return page.locator(f"[data-tile={name}] .tile-value")


def propose(page: Page, name: str, value: str) -> None:
    page.locator(f"#lever-{name}").fill(value)


def apply(page: Page, *, reason: str) -> None:
    page.get_by_label("Reason", exact=True).fill(reason)
    page.locator("#apply").click()


def newest_version(page: Page) -> int:
    """The version in force as the levers' heading tells it."""
    heading = page.locator("#levers-version")
    expect(heading).to_have_text(IN_FORCE, timeout=A_WHILE_MS)
    found = IN_FORCE.match(heading.inner_text())
    assert found is not None
    return int(found[1])


def expect_version(page: Page, number: int) -> None:
    expect(page.locator("#levers-version")).to_have_text(f"version {number} in force", timeout=A_WHILE_MS)


def markers_of(page: Page, chart: str) -> list[str]:
    """The labels of the markers that a chart draws."""
    script = """chart => {
        const canvas = document.querySelector(`[data-chart=${chart}] canvas`);
        const annotations = Chart.getChart(canvas).options.plugins.annotation.annotations;
        return Object.values(annotations).map(each => String(each.label.content));
    }"""
    return list(page.evaluate(script, chart))


def drawn_pixels(page: Page, chart: str) -> int:
    """How many pixels of a chart have the colour of its first line."""
    script = """chart => {
        const canvas = document.querySelector(`[data-chart=${chart}] canvas`);
        const context = canvas.getContext("2d");
        const probe = new OffscreenCanvas(1, 1).getContext("2d");
        probe.fillStyle = Chart.getChart(canvas).data.datasets[0].borderColor;
        probe.fillRect(0, 0, 1, 1);
        const wanted = probe.getImageData(0, 0, 1, 1).data;
        const data = context.getImageData(0, 0, canvas.width, canvas.height).data;
        const isNear = at => [0, 1, 2].every(channel => Math.abs(data[at + channel] - wanted[channel]) < 24);
        let drawn = 0;
        for (let at = 0; at < data.length; at += 4) drawn += data[at + 3] > 200 && isNear(at);
        return drawn;
    }"""
    return int(page.evaluate(script, chart))


def values_of(page: Page, chart: str) -> list[float | None]:
    """The values of a chart's first line, oldest first; None where nothing is known."""
    script = """chart => Chart.getChart(document.querySelector(`[data-chart=${chart}] canvas`)).data.datasets[0].data
        .map(point => Number.isNaN(point.y) ? null : point.y)"""
    return list(page.evaluate(script, chart))


def wait_until(page: Page, holds: Callable[[], bool]) -> None:
    """Lines that lie on each other at first part as figures come."""
    for _ in range(A_WHILE_MS // 250):
        if holds():
            return
        page.wait_for_timeout(250)
    raise AssertionError("never came true")


def test_figures_move_under_load_and_rest_after_it(stack: Stack, console_page: OpenConsole) -> None:
    stack.wait_until_idle()
    page = console_page(stack, size=ALL_IN_SIGHT).page
    expect_live(page)
    expect(tile(page, "running")).to_have_text("0", timeout=A_WHILE_MS)
    with load(stack):
        expect(tile(page, "running")).to_have_text("6", timeout=A_WHILE_MS)
        expect(tile(page, "generated")).to_have_text(re.compile(r"[1-9]"), timeout=A_WHILE_MS)
        expect(page.locator("[data-tile=kv] .tile-value")).not_to_have_text(re.compile(r"^0 ?%$"), timeout=A_WHILE_MS)
        for chart in ("ttft", "itl", "e2e", "queue_time"):
            expect(page.locator(f"[data-chart={chart}] .figures")).to_have_text(A_DURATION, timeout=A_WHILE_MS)
        for chart in CHARTS:
            if chart == "guesses_kept":
                continue  # nothing is guessed while `speculation` is off
            page.wait_for_function(HAS_MANY_VALUES, arg=chart)
            wait_until(page, lambda chart=chart: drawn_pixels(page, chart) > 3)
    expect(tile(page, "running")).to_have_text("0", timeout=A_WHILE_MS)
    # Whoever opens the page now still sees what was.
    later = console_page(stack).page
    expect_live(later)
    expect(later.locator("[data-chart=e2e] .figures")).to_have_text(A_DURATION, timeout=A_WHILE_MS)
    assert sum(value is not None and value > 0 for value in values_of(later, "sequences")) > 1


def test_a_lever_is_moved_confirmed_marked_and_rolled_back(stack: Stack, console_page: OpenConsole) -> None:
    page = console_page(stack, size=ALL_IN_SIGHT).page
    expect_live(page)
    before = newest_version(page)
    propose(page, "max_running", "3")
    expect(page.locator("[data-lever=max_running] .lever-change")).to_contain_text(re.compile(r"32\s*→\s*3\b"))
    apply(page, reason="see what three do")
    expect_version(page, before + 1)
    expect(page.locator("#progress")).to_contain_text("1 of 1", timeout=A_WHILE_MS)
    expect(page.locator("#lever-max_running")).to_have_value("3")
    newest = page.locator("#versions > li").first
    for text in (f"v{before + 1}", stack.first_run["username"], "see what three do"):
        expect(newest).to_contain_text(text)
    expect(newest).to_contain_text(re.compile(r"max_running\s*32\s*→\s*3\s*sequences"))
    for chart in CHARTS:
        page.wait_for_function(
            """([chart, label]) => Object.values(Chart.getChart(document.querySelector(`[data-chart=${chart}] canvas`))
                .options.plugins.annotation.annotations).some(each => String(each.label.content).includes(label))""",
            arg=[chart, str(before + 1)],
        )

    page.locator("#versions > li", has_text="see what three do").wait_for()
    page.get_by_role("button", name=re.compile(rf"Roll back to (this|version).*\b{before}\b")).click()
    expect_version(page, before + 2)
    expect(page.locator("#lever-max_running")).to_have_value("32", timeout=A_WHILE_MS)
    snapshot = stack.wait_for(lambda s: s["applied_by"] == 1)
    assert snapshot["tunables_version"] == before + 2
    marked = page.locator("#marks li", has_text=f"version {before + 1} by {stack.first_run['username']}")
    expect(marked).to_contain_text(re.compile(r"max_running 32 → 3 sequences.*see what three do"))
    # A page that is opened later has the markers too: they are in the history.
    later = console_page(stack, size=ALL_IN_SIGHT).page
    expect_live(later)
    later.wait_for_function(
        """label => Object.values(Chart.getChart(document.querySelector("[data-chart=ttft] canvas"))
            .options.plugins.annotation.annotations).some(each => String(each.label.content).includes(label))""",
        arg=str(before + 1),
    )
    assert any(str(before + 2) in label for label in markers_of(later, "kv"))


def test_a_bad_value_is_refused_where_it_was_typed(stack: Stack, console_page: OpenConsole) -> None:
    page = console_page(stack).page
    expect_live(page)
    before = newest_version(page)
    propose(page, "max_running", "0")
    error = page.locator("#lever-max_running-error")
    expect(error).to_have_text(re.compile("max_running must be an integer from 1 to 1,?024, not '?0'?"))
    page.locator("#apply").click()
    expect(page.locator("#lever-max_running")).to_have_value("0")
    page.locator("#discard").click()
    expect(page.locator("#lever-max_running")).to_have_value("32")
    assert newest_version(page) == before


def test_two_windows_agree_and_the_later_change_is_refused_with_the_others_diff(
    stack: Stack, console_page: OpenConsole
) -> None:
    mine, theirs = console_page(stack).page, console_page(stack).page
    for page in (mine, theirs):
        expect_live(page)
    before = newest_version(mine)
    propose(mine, "max_prefill_chunk", "128")
    propose(theirs, "batch_window_ms", "5")
    apply(theirs, reason="theirs came first")
    for page in (mine, theirs):
        expect_version(page, before + 1)
    conflict = mine.locator("#conflict")
    expect(conflict).to_contain_text("theirs came first")
    expect(conflict).to_contain_text(stack.first_run["username"])
    expect(conflict).to_contain_text(re.compile(r"batch_window_ms\s*0\s*→\s*5\s*ms"))
    expect(mine.locator("#lever-max_prefill_chunk")).to_have_value("128")
    conflict.get_by_role("button", name=re.compile("Apply on top")).click()
    for page in (mine, theirs):
        expect_version(page, before + 2)
        expect(page.locator("#lever-max_prefill_chunk")).to_have_value("128", timeout=A_WHILE_MS)
        expect(page.locator("#lever-batch_window_ms")).to_have_value("5", timeout=A_WHILE_MS)
    stack.tune(max_prefill_chunk=192, batch_window_ms=0)
    for page in (mine, theirs):
        expect_version(page, before + 3)


def test_a_prompt_is_answered_as_it_is_computed_and_can_be_stopped(stack: Stack, console_page: OpenConsole) -> None:
    page = console_page(stack).page
    expect_live(page)
    before = num_requests_of(stack, "console")
    page.get_by_label("Prompt", exact=True).fill("Count from one to ten in words.")
    page.get_by_label("Max tokens").fill("40")
    page.get_by_label("Temperature").fill("0")
    page.locator("#prompt-send").click()
    expect(page.locator("#prompt-answer")).to_have_text(SOME_TEXT, timeout=A_WHILE_MS)
    expect(page.locator("#prompt-facts")).to_contain_text("TTFT", timeout=A_WHILE_MS)
    expect(page.locator("#prompt-stop")).to_be_hidden(timeout=A_WHILE_MS)

    page.get_by_label("Max tokens").fill("2000")
    page.get_by_label("Prompt", exact=True).fill("Tell me a very long story about a locomotive.")
    page.locator("#prompt-send").click()
    expect(page.locator("#prompt-answer")).to_have_text(SOME_TEXT, timeout=A_WHILE_MS)
    page.locator("#prompt-stop").click()
    expect(page.locator("#prompt-send")).to_be_visible()
    wait_for(lambda: num_requests_of(stack, "console") == before + 2)


def num_requests_of(stack: Stack, name: str) -> int:
    """How many requests of the tenants of a name the ledger knows of; the console's tenant comes with its first."""
    tenants = httpx.get(f"{stack.url}/ops/v1/tenants", headers=stack.headers).json()["data"]
    addresses = [f"{stack.url}/ops/v1/tenants/{tenant['id']}/usage" for tenant in tenants if tenant["name"] == name]
    usages = [httpx.get(address, headers=stack.headers).json()["data"] for address in addresses]
    return sum(day["num_requests"] for days in usages for day in days)


@pytest.mark.parametrize(
    ("size", "schemes"), [((1440, 900), ("light", "dark")), ((390, 844), ("dark",))], ids=["desktop", "phone"]
)
def test_pages_can_be_used_by_everyone(
    stack: Stack, console_page: OpenConsole, size: tuple[int, int], schemes: tuple[str, ...]
) -> None:
    """What is narrow has the same colours."""
    console = console_page(stack, size=size)
    page = console.page
    expect_live(page)
    propose(page, "max_running", "0")
    propose(page, "kv_limit_ratio", "0.5")
    expect(page.locator("#lever-max_running-error")).to_be_visible()
    console.check(*schemes)
    for path in ("/console/pools/default/versions/", "/console/login/"):
        page.goto(stack.url + path)
        console.check(*schemes)


def test_what_matters_most_is_in_sight_on_a_desktop(stack: Stack, console_page: OpenConsole) -> None:
    page = console_page(stack, size=(1440, 900)).page
    expect_live(page)
    # Beneath the bar over every page; what greets whoever is new here is above it once.
    bar, live = (page.locator(each).bounding_box() for each in (".bar", "#live"))
    assert bar is not None
    assert live is not None
    for gauge in ("#tiles", "[data-chart=sequences]", "[data-chart=ttft]", "[data-chart=itl]"):
        box = page.locator(gauge).bounding_box()
        assert box is not None
        assert bar["height"] + box["y"] - live["y"] + box["height"] <= 900
