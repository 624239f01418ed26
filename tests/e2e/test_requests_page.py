"""The pages of requests in a real browser: one is watched, ended, and looked at from its arrival to its end."""

from __future__ import annotations

import csv
import itertools
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import openai
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browsing import Console
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.model, pytest.mark.browser]

OpenConsole = Callable[..., Console]
REQUESTS = "/console/requests/"
A_WHILE_MS = 30_000
LONG_ID = re.compile(r"^req_[0-9a-f]{32}$")


@contextmanager
def long_request(stack: Stack, model: str) -> Iterator[list[str]]:
    """A stream that goes on until someone ends it; how it ended, once it has."""
    ends: list[str] = []

    def read() -> None:
        with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.first_run["api_key"], max_retries=0) as client:
            try:
                stream = client.completions.create(
                    model=model, prompt="Once", max_tokens=1900, stream=True, extra_body={"ignore_eos": True}
                )
                for _ in stream:
                    pass
                ends.append("finished")
            except openai.APIError as error:
                ends.append(str(error.code))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    yield ends
    reader.join(60)
    assert not reader.is_alive()


def ask(stack: Stack, model: str) -> str:
    """A short request's id."""
    answer = httpx.post(
        f"{stack.url}/v1/completions",
        headers=stack.headers,
        json={"model": model, "prompt": "Once upon a time", "max_tokens": 4},
        timeout=60,
    )
    assert answer.status_code == 200
    return str(answer.json()["id"])


def row_of(page: Page, request_id: str) -> str:
    """The selector of a request's row in the log."""
    return f'#log tr[data-id="req_{request_id.partition("-")[2]}"]'


def test_a_request_is_watched_and_ended_and_its_client_is_told(
    stack: Stack, console_page: OpenConsole, model: str
) -> None:
    page = console_page(stack, REQUESTS).page
    expect(page.locator("#running-body")).to_contain_text("Nothing waits or runs now.")
    page.get_by_label("Live tail").check()
    with long_request(stack, model) as ends:
        # Neither is the page loaded again: what is in flight comes by itself.
        row = page.locator("#running-body tbody tr")
        expect(row).to_have_count(1, timeout=A_WHILE_MS)
        expect(row).to_contain_text("running", timeout=A_WHILE_MS)
        abort = row.get_by_role("link", name="Abort")
        abort.focus()
        with page.expect_response(re.compile("running-requests")):
            pass
        expect(abort).to_be_focused()
        page.keyboard.press("Enter")
        page.get_by_label("Reason").fill("the test has seen enough")
        page.get_by_label("Reason").press("Enter")
        expect(page.get_by_role("status").first).to_contain_text("is aborted: its client was told so")
    assert ends == ["aborted_by_operator"]

    # The log grows at its top by itself, unless somebody points at it.
    page.get_by_label("Live tail").check()
    quick = row_of(page, ask(stack, model))
    expect(page.locator(quick)).to_be_visible(timeout=A_WHILE_MS)
    page.locator("#log tr").first.hover()
    expect(page.locator("#tail-state")).to_have_text("paused while you point at it", timeout=A_WHILE_MS)
    later = row_of(page, ask(stack, model))
    with page.expect_response(re.compile("running-requests")):
        pass
    expect(page.locator(later)).to_have_count(0)
    page.mouse.move(0, 0)
    expect(page.locator(later)).to_be_visible(timeout=A_WHILE_MS)

    page.goto(f"{stack.url}{REQUESTS}?outcome=aborted")
    page.locator("#log th a").first.click()
    expect(page.get_by_text("aborted by operator: the test has seen enough")).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_have_text(LONG_ID)
    said = page.locator("#waterfall-said")
    expect(said).to_contain_text("First token after")
    page.locator(".lanes").focus()
    page.keyboard.press("End")
    expect(said).to_contain_text(re.compile(r"^Decode from .* tokens"))
    expect(page.locator(".segment.is-chosen")).to_have_count(1)
    page.locator('.segment[data-kind="prefill"]').first.hover()
    expect(said).to_contain_text(re.compile(r"^Prefill from .* tokens?, 1 in the batch"))


def test_pages_are_accessible_and_fit(stack: Stack, console_page: OpenConsole, model: str) -> None:
    only = f"{REQUESTS}?q={ask(stack, model)}"  # one row is as good as fifty
    desktop, phone = (console_page(stack, only, size=size) for size in ((1440, 900), (390, 844)))
    expect_logged(desktop.page)
    one = desktop.page.locator("#log th a").first.get_attribute("href")
    with long_request(stack, model):
        running = desktop.page.locator("#running-body th a")
        expect(running).to_have_count(1, timeout=A_WHILE_MS)
        in_flight = running.get_attribute("href")
        check([desktop], [f"{stack.url}{in_flight}", f"{stack.url}{in_flight}abort/"])
        desktop.page.get_by_role("button", name="Abort the request").click()
        expect(desktop.page.get_by_role("status").first).to_contain_text("is aborted")
    check([desktop, phone], [f"{stack.url}{path}" for path in (only, one, f"{only}&min_e2e_ms=none")])
    expect(phone.page.locator("#min_e2e_ms-error")).to_be_visible()
    for console in (desktop, phone):
        console.forgive("400")


def check(consoles: list[Console], urls: list[str]) -> None:
    """What is narrow has the same colours, and is looked at but once."""
    for console, url in itertools.product(consoles, urls):
        console.page.goto(url)
        is_wide = console is consoles[0]
        for scheme in ("light", "dark") if is_wide else ("dark",):
            console.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            assert console.accessibility_problems("main") == [], (url, scheme)
        assert console.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, url


def expect_logged(page: Page) -> None:
    """Wait until the log has what the page asks for: it is stored within seconds."""
    for _ in range(30):
        if page.locator("#log tr").count():
            return
        page.wait_for_timeout(1000)
        page.reload()
    raise AssertionError("nothing comes into the log")


def test_pages_work_without_scripts(stack: Stack, browser: Browser, model: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    Console(page).sign_in(stack, REQUESTS)
    page.goto(f"{stack.url}{REQUESTS}?q={ask(stack, model)}")
    expect_logged(page)
    expect(page.get_by_label("Live tail")).to_be_hidden()
    page.get_by_label("Outcome").select_option("finished")
    page.get_by_role("button", name="Show").click()
    page.locator("#log th a").first.click()
    expect(page.locator(".segment").first).to_be_visible()
    page.get_by_text("As a table").click()
    expect(page.get_by_role("row", name=re.compile("prefill"))).to_be_visible()
    page.locator(".crumb a").click()  # back to what was asked for
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    lines = list(csv.DictReader(download.value.path().read_text(encoding="utf-8").splitlines()))
    assert [(line["outcome"], line["completion_tokens"]) for line in lines] == [("finished", "4")]
    context.close()
