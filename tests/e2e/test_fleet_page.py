"""The Fleet pages in a real browser: an operator looks at all that runs, drains an engine and lets it work again."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browsing import Console, open_console
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.model, pytest.mark.browser]

OpenConsole = Callable[..., Console]
FLEET = "/console/fleet/"
A_WHILE_MS = 30_000
LOOK_AGAIN = "document.dispatchEvent(new Event('visibilitychange'))"


def tell(page: Page, act: str, *, reason: str) -> None:
    """Follow the act's link and confirm it, with the keyboard alone."""
    page.get_by_role("link", name=f"{act}… engine").focus()
    page.keyboard.press("Enter")
    page.get_by_label("Reason").focus()
    page.keyboard.type(reason)
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").filter(has_text="is told to")).to_be_visible()


def test_an_engine_is_drained_and_resumed_while_another_operator_watches(
    stack: Stack, console_page: OpenConsole
) -> None:
    """C86."""
    page, other = console_page(stack, FLEET).page, console_page(stack, FLEET).page
    processes = page.get_by_role("region", name="Processes that are up")
    for name in ("web", "engine", "monitor", "jobs"):
        expect(processes.get_by_role("row", name=re.compile(rf"\b{name}\b")).first).to_be_visible(timeout=A_WHILE_MS)
    expect(page.locator(".engines-table .fleet-state")).to_have_text("ready")
    other.locator(".engines-table th a").focus()
    other.evaluate("globalThis.focusedAtFirst = document.activeElement")
    try:
        tell(page, "Drain", reason="a look at the kernels")
        for each in (page, other):
            expect(each.locator(".engines-table .fleet-state")).to_have_text("drained", timeout=A_WHILE_MS)
            expect(each.get_by_text("Pool default stands still")).to_be_visible()
    finally:
        page.goto(f"{stack.url}{FLEET}")
        tell(page, "Resume", reason="done")
    for each in (page, other):
        expect(each.locator(".engines-table .fleet-state")).to_have_text("ready", timeout=A_WHILE_MS)
        expect(each.get_by_text("Pool default stands still")).to_have_count(0)
    # What was refreshed under it meanwhile has taken neither the focus nor the node.
    assert other.evaluate("document.activeElement === globalThis.focusedAtFirst")


def test_a_process_shows_its_log_and_says_when_it_is_out_of_date(stack: Stack, console_page: OpenConsole) -> None:
    console = console_page(stack, FLEET)
    page = console.page
    page.locator(".engines-table th a").click()
    log = page.get_by_role("region", name="Lines of the log")
    expect(log.get_by_text(re.compile(r"^engine .* serves$"))).to_be_visible(timeout=A_WHILE_MS)
    expect(log.locator("li time").first).to_have_text(re.compile(r"^\d\d:\d\d:\d\d$"))
    page.get_by_role("link", name="Errors", exact=True).click()
    expect(page.get_by_text("No line of this level")).to_be_visible()
    page.go_back()
    page.context.set_offline(True)
    page.evaluate(LOOK_AGAIN)
    expect(page.get_by_role("status")).to_contain_text("Not refreshed since", timeout=A_WHILE_MS)
    page.context.set_offline(False)
    page.evaluate(LOOK_AGAIN)
    expect(page.get_by_role("status")).to_be_empty(timeout=A_WHILE_MS)
    console.forgive("ERR_INTERNET_DISCONNECTED")
    page.goto(f"{stack.url}/console/nowhere/")
    console.forgive("404")
    page.goto(f"{stack.url}{FLEET}")
    page.get_by_role("region", name="Processes that are up").get_by_role("link", name=re.compile("^web ")).click()
    expect(log.get_by_text("Not Found: /console/nowhere/").first).to_be_visible(timeout=A_WHILE_MS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_pages_are_accessible_and_fit(browser: Browser, stack: Stack, scheme: str) -> None:
    console = open_console(browser, stack, FLEET, scheme=scheme)
    page = console.page
    engine = stack.snapshot()["engines"][0]["engine_id"]
    for path in (FLEET, f"{FLEET}processes/{engine}/", f"{FLEET}engines/{engine}/drain/"):
        page.goto(f"{stack.url}{path}")
        for width in (1440, 360) if path == FLEET else (1440 if scheme == "light" else 360,):
            page.set_viewport_size({"width": width, "height": 800})
            assert console.accessibility_problems() == []
            assert page.evaluate("document.documentElement.scrollWidth") <= width
    console.page.context.close()
    assert console.complaints == []
