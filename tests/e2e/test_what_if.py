"""What if?, in a real browser on a real stack: a change is simulated beside its levers, applied, and found again."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.browsing import Console
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.model, pytest.mark.browser]

OpenConsole = Callable[..., Console]
TUNING = "/console/pools/default/tuning/"
A_WHILE_MS = 90_000


def test_a_change_is_tried_on_the_simulator_before_it_is_applied(
    own_stack: Callable[..., Stack], console_page: OpenConsole
) -> None:
    """On a stack of its own, which has had no traffic yet."""
    stack = own_stack().start()
    console = console_page(stack, TUNING)
    page = console.page
    expect(page.locator("#badge")).to_have_attribute("data-state", "live", timeout=A_WHILE_MS)
    expect(page.locator("#what-if")).to_be_hidden()
    page.locator("#lever-max_running").fill("3")

    # Too little traffic is said, and what to do about it.
    page.get_by_role("button", name="What if?", exact=True).click()
    expect(page.locator("#what-if-problem")).to_contain_text("choose a saved workload, or a ready one such as")
    console.forgive("status of 400")

    page.get_by_label("Try on").select_option("chat")
    page.get_by_role("button", name="What if?", exact=True).click()
    answer = page.locator("#what-if-answer")
    expect(answer).to_contain_text("Predicted; nothing is changed yet.", timeout=A_WHILE_MS)
    figures = page.get_by_role("region", name="Predicted figures")
    for title in ("TTFT p95", "ITL p50", "E2E p95", "Generated tokens/s", "KV memory at its peak", "Refused"):
        expect(figures).to_contain_text(title)
    expect(page.locator("#what-if-problem")).to_be_hidden()
    check_it_fits(console)
    expect(page.locator("#standing")).not_to_contain_text("max_running 32 → 3")

    # It was of this change alone.
    page.locator("#lever-max_running").fill("5")
    expect(answer).to_contain_text("Of a change as it was before: ask again.")
    page.locator("#lever-max_running").fill("3")
    expect(answer).to_contain_text("Predicted; nothing is changed yet.")
    own_page = stack.url + str(page.get_by_role("link", name="Its page").get_attribute("href"))

    # Applied, it is found again by its values.
    page.locator("#apply").click()
    expect(page.locator("#progress")).to_contain_text("applied", timeout=A_WHILE_MS)
    expect(page.locator("#standing")).to_contain_text("max_running 32 → 3")
    page.goto(own_page)
    expect(page.get_by_role("heading", name=re.compile(r"Prediction \d+"))).to_be_visible()
    until_linked(page)
    expect(page.get_by_text("It was applied; what happens under it is filled in")).to_be_visible()
    check_it_fits(console)
    page.get_by_role("navigation", name="Lab").get_by_role("link", name="What if?").click()
    expect(page.get_by_text("1 applied")).to_be_visible()
    check_it_fits(console)
    assert console.complaints == []


def until_linked(page: Page) -> None:
    """Look again until the version is noted, which happens every 20 seconds."""
    for _ in range(60):
        if page.get_by_role("link", name=re.compile(r"Version \d+")).count():
            return
        page.wait_for_timeout(1000)
        page.reload()
    raise AssertionError("the version was not found to be what was predicted")


def check_it_fits(console: Console) -> None:
    """In light and dark, wide and narrow, for everybody."""
    for scheme in ("light", "dark"):
        console.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
        for width in (360, 1440):
            console.page.set_viewport_size({"width": width, "height": 900})
            assert console.accessibility_problems() == []
            assert console.page.evaluate("document.documentElement.scrollWidth") <= width
