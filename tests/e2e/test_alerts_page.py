"""The pages about alerts in a real browser: a rule is made by keyboard, missed, told on every page, and changed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, expect

from tests.e2e.browsing import Console, open_console
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.model, pytest.mark.browser]

OpenConsole = Callable[..., Console]
ALERTS = "/console/alerts/"
A_WHILE_MS = 30_000


def test_a_rule_that_is_missed_is_told_on_every_page_until_it_is_met(stack: Stack, console_page: OpenConsole) -> None:
    watched = console_page(stack)
    console = console_page(stack, ALERTS)
    page = console.page
    page.get_by_role("link", name="New rule").click()
    page.get_by_label("Name", exact=True).focus()
    page.keyboard.type("too many engines")
    page.get_by_label("Metric").select_option("engines")
    page.get_by_label("Bound").fill("none")
    page.get_by_label("for (s)").fill("0")
    page.keyboard.press("Enter")
    expect(page.locator("#bound-error")).to_contain_text("a number, not 'none'")
    console.forgive("400")
    page.get_by_label("Bound").fill("0")
    page.keyboard.press("Enter")
    expect(page.get_by_role("row", name="too many engines")).to_be_visible()
    try:
        banner = watched.page.locator("#alert-banner")
        expect(banner).to_contain_text("too many engines (default): Engines above 0 for 0 s", timeout=A_WHILE_MS)
        expect(watched.page.get_by_text("alert: too many engines").first).to_be_attached(timeout=A_WHILE_MS)
        # What was told last stays while the server is away, and says so.
        watched.page.context.set_offline(True)
        expect(banner).to_contain_text("not up to date", timeout=A_WHILE_MS)
        expect(banner).to_contain_text("too many engines")
        watched.page.context.set_offline(False)
        expect(banner.get_by_text("not up to date")).to_be_hidden(timeout=A_WHILE_MS)
        watched.forgive("ERR_INTERNET_DISCONNECTED")
        page.reload()
        expect(page.get_by_role("row", name="too many engines").first).to_contain_text("missed")
        for name in ("light", "dark"):
            page.emulate_media(color_scheme=name)
            for width in (1440, 360):
                page.set_viewport_size({"width": width, "height": 800})
                assert console.accessibility_problems() == []
                assert page.evaluate("document.documentElement.scrollWidth") <= width
    finally:
        page.get_by_role("link", name="too many engines").click()
        page.get_by_role("button", name="Delete the rule").click()
    expect(page.get_by_text("The rule too many engines is deleted.")).to_be_visible()
    expect(banner).to_be_hidden(timeout=A_WHILE_MS)
    page.reload()
    expect(page.get_by_role("region", name="Table of past alerts")).to_contain_text("too many engines")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_form_is_accessible_and_fits(browser: Browser, stack: Stack, scheme: str) -> None:
    console = open_console(browser, stack, f"{ALERTS}new/", scheme=scheme)
    for width in (1440, 360):
        console.page.set_viewport_size({"width": width, "height": 800})
        assert console.accessibility_problems() == []
        assert console.page.evaluate("document.documentElement.scrollWidth") <= width
    console.page.context.close()
    assert console.complaints == []
