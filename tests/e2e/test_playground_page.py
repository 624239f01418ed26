"""The playground and the audit in a real browser: an operator asks, takes the call along, and finds what was done."""

from __future__ import annotations

import csv
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browsing import Console
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.model, pytest.mark.browser]

OpenConsole = Callable[..., Console]
PLAYGROUND, AUDIT, STEPS = "/console/playground/", "/console/audit/", "/console/first-steps/"
ANSWER = ".said[data-role=assistant] .said-text"


def ask(page: Page, text: str, **parameters: str) -> str:
    """The answer to a message, once it has ended."""
    for name, value in parameters.items():
        page.locator(f"#{name}").fill(value)
    page.locator("#text").fill(text)
    page.locator("#send").click()
    expect(page.locator("#status")).to_have_text("the answer is complete", timeout=60_000)
    return page.locator(ANSWER).last.inner_text()


def fits_and_is_accessible(console: Console) -> None:
    assert console.accessibility_problems() == [], console.page.url
    assert console.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, console.page.url


def test_a_conversation_is_had_measured_and_taken_along_as_code(stack: Stack, console_page: OpenConsole) -> None:
    console = console_page(stack, PLAYGROUND)
    page = console.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("#system").fill("You answer in one short sentence.")
    first = ask(page, 'What is a footplate? It\'s "quoted" \\ and\nbroken.', temperature="0", seed="7", max_tokens="24")
    assert first
    expect(page.locator("#tokens")).to_have_text(re.compile(r"^\d+ → \d+$"))
    expect(page.locator("#ttft")).to_have_text(re.compile(r"m?s$"))
    expect(page.locator("#intervals-words")).to_contain_text("prompt tokens cached")

    # What is copied gives the very same answer.
    expect(page.locator("#code-state")).to_have_text("What was asked for last.")
    page.locator("#copy").click()
    expect(page.locator("#copied")).to_have_text("Copied.")
    program = page.evaluate("navigator.clipboard.readText()")
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "FOOTPLATE_API_KEY": stack.first_run["api_key"]},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == first.strip()

    # The second message has the first and its answer before it; the answer's tokens tell how probable they were.
    ask(page, "Say it again.", top_logprobs="2")
    page.get_by_role("radio", name="curl").check()
    assert page.locator("#code").inner_text().count('"role"') == 4
    page.locator(".probable summary").click()
    expect(page.locator(".probable tbody tr").first).to_contain_text("%")
    fits_and_is_accessible(console)

    # Wrong values are told where they stand, and what was typed stays.
    for name, typed, complaint in (
        ("temperature", "9", "temperature must be a number from 0 to 2, not 9"),
        ("top_k", "few", 'top_k must be a number, not "few".'),
    ):
        page.locator(f"#{name}").fill(typed)
        page.locator("#text").fill("Still here")
        page.locator("#text").press("Control+Enter")
        expect(page.locator(f"#{name}-error")).to_have_text(complaint)
        expect(page.locator(f"#{name}")).to_be_focused()
        expect(page.locator("#text")).to_have_value("Still here")
        page.locator(f"#{name}").fill("")
    console.forgive("400")

    # A long answer is stopped, and a completion goes on where a text ends.
    page.locator("#max_tokens").fill("1500")
    page.locator("#send").click()
    expect(page.locator(ANSWER).last).not_to_be_empty(timeout=30_000)
    page.locator("#stop").click()
    expect(page.locator("#ended")).to_have_text("you")
    page.get_by_role("radio", name="Completion").check()
    expect(page.locator("#system")).to_be_hidden()
    ask(page, "Once upon a time", max_tokens="8", top_logprobs="")
    expect(page.locator("#request-link")).to_have_attribute(
        "href", re.compile(r"^/console/requests/req_[0-9a-f]{32}/$")
    )


def test_what_was_done_is_found_and_sample_traffic_flows(stack: Stack, console_page: OpenConsole) -> None:
    console = console_page(stack, STEPS)
    page = console.page
    page.get_by_role("button", name="Send sample traffic").press("Enter")
    expect(page.locator("[data-sample-state]")).to_contain_text("sends sample traffic")
    fits_and_is_accessible(console)
    page.goto(f"{stack.url}{PLAYGROUND}")
    assert ask(page, "A word that no audit keeps", max_tokens="4")
    page.goto(f"{stack.url}{STEPS}")
    page.get_by_role("button", name="Stop it").click()
    expect(page.get_by_text("The sample traffic is stopped.")).to_be_visible()

    page.goto(f"{stack.url}{AUDIT}")
    page.get_by_label("Act", exact=True).select_option("prompt sent")
    page.get_by_role("button", name="Filter", exact=True).press("Enter")
    expect(page.get_by_role("row").nth(1)).to_contain_text("operator")
    assert "no audit keeps" not in page.content()
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    rows = list(csv.DictReader(Path(download.value.path()).read_text(encoding="utf-8").splitlines()))
    assert {row["action"] for row in rows} == {"prompt sent"}
    page.get_by_role("link", name="Show all").click()
    for act in ("sample traffic sent", "sample traffic stopped", "signed in"):
        expect(page.get_by_text(act, exact=True).and_(page.locator(".act")).first).to_be_visible()
    page.get_by_label("From (UTC)").fill("soon")
    page.get_by_label("From (UTC)").press("Enter")
    expect(page.locator("#since-error")).to_contain_text("since must be a moment of UTC")
    fits_and_is_accessible(console)
    console.forgive("400")


def test_pages_fit_a_phone_in_the_dark(stack: Stack, console_page: OpenConsole) -> None:
    console = console_page(stack, STEPS, size=(360, 740), scheme="dark")
    fits_and_is_accessible(console)
    for path in (PLAYGROUND, f"{AUDIT}?actor_kind=system"):
        console.page.goto(f"{stack.url}{path}")
        fits_and_is_accessible(console)


def test_audit_and_first_steps_work_without_scripts(stack: Stack, browser: Browser) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    Console(page).sign_in(stack, AUDIT)
    page.goto(f"{stack.url}{AUDIT}?action=signed+in")
    expect(page.get_by_role("row").nth(1)).to_contain_text("signed in")
    page.goto(f"{stack.url}{STEPS}")
    page.get_by_role("button", name="Stop it").click()
    expect(page.get_by_text("No sample traffic runs any more.")).to_be_visible()
    context.close()
