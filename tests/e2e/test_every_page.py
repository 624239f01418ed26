"""What all pages promise, in a real browser: windows agree, and a line, a session or a server that is lost is told, and
costs nothing that was typed."""

from __future__ import annotations

import itertools
import os
import re
import signal
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import BrowserContext, Page, WebSocketRoute, expect

from tests.e2e.browsing import Console
from tests.e2e.stack import Stack
from tests.e2e.test_live_page import (
    HAS_MANY_VALUES,
    apply,
    expect_version,
    newest_version,
    propose,
    values_of,
)

pytestmark = [pytest.mark.stack, pytest.mark.model, pytest.mark.browser]

OpenConsole = Callable[..., Console]
OpenTab = Callable[..., Page]
LIVE, STEPS, TUNING = "/console/", "/console/steps/", "/console/pools/default/tuning/"
REQUESTS, FLEET, PLAYGROUND = "/console/requests/", "/console/fleet/", "/console/playground/"
ALERTS, TENANTS, AUDIT = "/console/alerts/", "/console/tenants/", "/console/audit/"
TAIL = f"{REQUESTS}#tail"
WITH_SOCKET = (LIVE, STEPS, TUNING)
A_WHILE_MS = 30_000
LOOK_AGAIN = "document.dispatchEvent(new Event('visibilitychange'))"
ANSWER = ".said[data-role=assistant] .said-text"
# Where a page that is no form says that it is not up to date, and what of a lost line and of an ended session.
SAYS_SO = {
    TAIL: ("#running-state", "Not up to date: the server does not answer.", "You are signed out"),
    FLEET: ("#refresh-status", "the server does not answer", "you are signed out"),
}


@pytest.fixture
def open_tab(stack: Stack) -> OpenTab:
    """Opens more tabs of a console, watched as the first is: what they complain of is its complaint."""

    def open_one(beside: Console, path: str, *, of: Stack = stack) -> Page:
        tab = Console(beside.page.context.new_page(), beside.complaints)
        tab.watch()
        tab.page.goto(of.url + path)
        return tab.page

    return open_one


class Line:
    """Owns the way from the pages of a context to the server, which the test cuts and joins again. What a page opens
    before it is made is not on it."""

    def __init__(self, context: BrowserContext) -> None:
        self._context = context
        self._is_cut = False
        self._open: list[tuple[WebSocketRoute, WebSocketRoute]] = []
        context.route_web_socket(re.compile("/console/"), self._connect)

    def cut(self) -> None:
        self._is_cut = True
        self._context.set_offline(True)
        for ends in self._open:
            for end in ends:
                end.close(code=4000)
        self._open.clear()

    def join(self) -> None:
        self._is_cut = False
        self._context.set_offline(False)

    def _connect(self, page: WebSocketRoute) -> None:
        if self._is_cut:
            page.close(code=4000)
        else:
            self._open.append((page, page.connect_to_server()))


def expect_state(page: Page, state: str) -> None:
    expect(page.locator("#badge")).to_have_attribute("data-state", state, timeout=A_WHILE_MS)


def ask(page: Page, text: str) -> str:
    """The id of a request that the playground made by keyboard, once it is answered."""
    say(page, text)
    expect(page.locator("#status")).to_have_text("the answer is complete", timeout=A_WHILE_MS)
    return str(page.locator("#request-link").get_attribute("href")).rstrip("/").rpartition("/")[2]


def say(page: Page, text: str) -> None:
    page.locator("#text").fill(text)
    page.locator("#text").press("Control+Enter")


def ask_the_api(stack: Stack) -> str:
    """A short request's id, as the log has it."""
    body = {"model": "SmolLM2-135M-Instruct", "prompt": "Once upon a time", "max_tokens": 4}
    answer = httpx.post(f"{stack.url}/v1/completions", headers=stack.headers, json=body, timeout=60)
    assert answer.status_code == 200
    return f"req_{str(answer.json()['id']).partition('-')[2]}"


def expect_logged_once(page: Page, *request_ids: str) -> None:
    for request_id in request_ids:
        expect(page.locator(f'#log tr[data-id="{request_id}"]')).to_have_count(1, timeout=A_WHILE_MS)


def type_rule(page: Page, name: str) -> None:
    """Fill the form of a new rule that no pool misses."""
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Metric").select_option("engines")
    page.get_by_label("Bound").fill("4000")


def expect_not_sent(page: Page, why: str) -> None:
    expect(page.locator("#not-sent")).to_contain_text(why, timeout=A_WHILE_MS)


def freeze(page: Page, *, is_frozen: bool) -> None:
    """What browsers do with tabs that were long out of sight: nothing runs in them."""
    session = page.context.new_cdp_session(page)
    session.send("Page.setWebLifecycleState", {"state": "frozen" if is_frozen else "active"})
    session.detach()


def longest_gap(values: list[float | None]) -> int:
    """The most places in a row that are empty, after the first that is not."""
    known = [index for index, value in enumerate(values) if value is not None]
    return max((after - before - 1 for before, after in itertools.pairwise(known)), default=0)


def test_windows_agree_whichever_pages_they_show(stack: Stack, console_page: OpenConsole, open_tab: OpenTab) -> None:
    mine, theirs = console_page(stack, TUNING), console_page(stack, LIVE)
    tuning, live = mine.page, theirs.page
    for page in (tuning, live):
        expect_state(page, "live")
    before = newest_version(live)

    # Of two who change tunables the later is told, and loses neither the values nor the terms.
    propose(tuning, "max_running", "31")
    tuning.locator("#guardrail").check()
    tuning.locator("#guardrail-bound").fill("3600000")
    propose(live, "batch_window_ms", "5")
    apply(live, reason="theirs came first")
    expect_version(live, before + 1)
    expect(tuning.locator("#conflict")).to_contain_text("theirs came first", timeout=A_WHILE_MS)
    expect(tuning.locator("#lever-max_running")).to_have_value("31")
    expect(tuning.locator("#guardrail")).to_be_checked()
    on_top = tuning.locator("#apply-on-top")
    expect(on_top).to_be_enabled()  # not before there was time to read it
    on_top.press("Enter")
    expect_version(live, before + 2)
    expect(live.locator("#lever-max_running")).to_have_value("31", timeout=A_WHILE_MS)
    newest = tuning.locator("#standing tbody tr").first
    expect(newest).to_contain_text("Guardrail rolls back at TTFT p95 above 3,600,000 ms", timeout=A_WHILE_MS)

    # A tab that stood still in the background shows what the other does once it is looked at.
    freeze(live, is_frozen=True)
    stack.tune(max_running=32, batch_window_ms=0)
    expect(tuning.locator("#lever-max_running")).to_have_value("32", timeout=A_WHILE_MS)
    freeze(live, is_frozen=False)
    expect_version(live, before + 3)
    expect(live.locator("#lever-max_running")).to_have_value("32", timeout=A_WHILE_MS)
    expect_state(live, "live")

    # Two who ask at once are both answered; both logs and both pictures have both requests.
    logs = [open_tab(each, TAIL) for each in (mine, theirs)]
    pictures = [open_tab(each, STEPS) for each in (mine, theirs)]
    talks = [open_tab(each, PLAYGROUND) for each in (mine, theirs)]
    for page in talks:
        page.locator("#max_tokens").fill("40")
        say(page, "Count from one to ten.")
    asked = [ask(page, "And once more.") for page in talks]
    for page in logs:
        expect_logged_once(page, *asked)
    stack.wait_until_idle()
    for page in pictures:
        expect(page.locator("#badge")).to_contain_text("no step for", timeout=A_WHILE_MS)
        page.locator("#picture").press("ArrowLeft")
        expect(page.locator("#step-heading")).to_have_text(re.compile(r"^Step [\d,]+$"))
    assert pictures[0].locator("#step-heading").inner_text() == pictures[1].locator("#step-heading").inner_text()


def test_a_lost_line_and_an_ended_session_are_told_on_every_page_and_cost_nothing_typed(
    stack: Stack, console_page: OpenConsole, open_tab: OpenTab
) -> None:
    console = console_page(stack, AUDIT)
    line = Line(console.page.context)
    tabs = {path: open_tab(console, path) for path in (*WITH_SOCKET, *SAYS_SO, PLAYGROUND, f"{ALERTS}new/")}
    log, talk, rule = tabs[TAIL], tabs[PLAYGROUND], tabs[f"{ALERTS}new/"]
    for path in WITH_SOCKET:
        expect_state(tabs[path], "live")
    propose(tabs[LIVE], "max_running", "7")
    talk.locator("#max_tokens").fill("8")
    first = ask(talk, "Hello?")
    expect_logged_once(log, first)

    line.cut()
    for path in WITH_SOCKET:
        expect_state(tabs[path], "lost")
    for path, (place, lost, _) in SAYS_SO.items():
        expect(tabs[path].locator(place)).to_contain_text(lost, timeout=A_WHILE_MS)
    expect(log.locator("#tail-state")).to_contain_text("Not up to date", timeout=A_WHILE_MS)
    expect(tabs[LIVE].locator("#apply")).to_be_disabled()
    expect(tabs[LIVE].locator("#lever-max_running")).to_have_value("7")
    say(talk, "Are you there?")
    expect(talk.locator("#problem")).to_contain_text("connection was lost", timeout=A_WHILE_MS)
    expect(talk.locator("#text")).to_have_value("Are you there?")
    type_rule(rule, "a rule of every page")
    rule.get_by_label("Bound").press("Enter")
    expect_not_sent(rule, "the server does not answer")
    expect(rule.get_by_label("Name", exact=True)).to_have_value("a rule of every page")
    assert Console(rule).accessibility_problems() == []
    second = ask_the_api(stack)

    line.join()
    console.forgive("ERR_INTERNET_DISCONNECTED")
    for path in WITH_SOCKET:
        expect_state(tabs[path], "live")
    for path, (place, _, _) in SAYS_SO.items():
        expect(tabs[path].locator(place)).to_be_empty(timeout=A_WHILE_MS)
    expect_logged_once(log, first, second)
    expect(tabs[LIVE].locator("#lever-max_running")).to_have_value("7")
    tabs[LIVE].locator("#discard").click()
    talk.locator("#text").press("Control+Enter")
    expect(talk.locator(ANSWER)).to_have_count(2, timeout=A_WHILE_MS)
    rule.get_by_label("Bound").press("Enter")
    expect(rule.get_by_role("row", name="a rule of every page")).to_be_visible()
    rule.get_by_role("link", name="a rule of every page").click()

    # A session that ends in one window ends in all.
    console.page.get_by_role("button", name="Sign out").press("Enter")
    console.page.wait_for_url(re.compile("/console/login/"))
    for path in WITH_SOCKET:
        expect_state(tabs[path], "signed_out")
        expect(tabs[path].locator("#retry")).to_have_text("Sign in")
    for path, (place, _, ended) in SAYS_SO.items():
        expect(tabs[path].locator(place)).to_contain_text(ended, timeout=A_WHILE_MS)
    say(talk, "Still there?")
    expect(talk.locator("#problem")).to_contain_text("sign in again", timeout=A_WHILE_MS)
    expect(talk.locator("#text")).to_have_value("Still there?")
    rule.get_by_label("Bound").fill("5000")
    rule.get_by_label("Bound").press("Enter")
    expect_not_sent(rule, "you are signed out")
    with rule.context.expect_page() as opened:
        rule.get_by_role("link", name="Sign in").press("Enter")
    opened.value.close()
    console.sign_in(stack, AUDIT)
    console.forgive("401")
    rule.get_by_label("Bound").press("Enter")
    expect(rule.get_by_role("row", name="a rule of every page")).to_contain_text("5,000")
    talk.locator("#text").press("Control+Enter")
    expect(talk.locator(ANSWER)).to_have_count(3, timeout=A_WHILE_MS)
    expect(talk.locator("#status")).to_have_text("the answer is complete", timeout=A_WHILE_MS)
    for path in WITH_SOCKET:
        tabs[path].locator("#retry").press("Enter")
        expect_state(tabs[path], "live")
    for path, (place, _, _) in SAYS_SO.items():
        tabs[path].evaluate(LOOK_AGAIN)
        expect(tabs[path].locator(place)).to_be_empty(timeout=A_WHILE_MS)
    rule.get_by_role("link", name="a rule of every page").click()
    rule.get_by_role("button", name="Delete the rule").press("Enter")
    expect(rule.get_by_text("The rule a rule of every page is deleted.")).to_be_visible()


def test_pages_find_their_way_back_from_a_dead_web_process_and_a_dead_engine(
    own_stack: Callable[..., Stack], console_page: OpenConsole, open_tab: OpenTab
) -> None:
    stack = own_stack().start()
    console = console_page(stack)
    live = console.page
    others = {path: open_tab(console, path, of=stack) for path in (STEPS, TUNING, TAIL, PLAYGROUND, f"{TENANTS}new/")}
    watched = (live, others[STEPS], others[TUNING])
    talk, tenant = others[PLAYGROUND], others[f"{TENANTS}new/"]
    for page in watched:
        expect_state(page, "live")
    expect(live.locator("#engines > tr")).to_have_count(1, timeout=A_WHILE_MS)
    propose(live, "max_running", "7")
    tenant.get_by_label("Name", exact=True).fill("typed before the server died")
    talk.locator("#max_tokens").fill("1500")
    say(talk, "Tell me a very long story.")
    expect(talk.locator(ANSWER)).not_to_be_empty(timeout=A_WHILE_MS)

    kill(stack, "runweb")
    for page in watched:
        expect(page.locator("#badge")).not_to_have_attribute("data-state", "live", timeout=A_WHILE_MS)
    # What came stays, and is said to be no whole answer.
    expect(talk.locator(".said-end")).to_have_text("broken off", timeout=A_WHILE_MS)
    expect(talk.locator("#problem")).to_contain_text("connection was lost")
    expect(talk.locator(ANSWER)).not_to_be_empty()
    for page in watched:
        expect_state(page, "live")
    assert live.locator("#lever-max_running").input_value() == "7"
    before = newest_version(live)
    apply(live, reason="after the line came back")
    expect_version(live, before + 1)
    expect(live.locator("#progress")).to_contain_text("1 of 1", timeout=A_WHILE_MS)
    expect(others[TUNING].locator("#standing tbody tr").first).to_contain_text(
        "after the line came back", timeout=A_WHILE_MS
    )
    talk.locator("#max_tokens").fill("8")
    talk.locator("#again").click()
    expect(talk.locator("#status")).to_have_text("the answer is complete", timeout=A_WHILE_MS)
    expect_logged_once(others[TAIL], ask_the_api(stack))
    tenant.get_by_role("button", name="Make the tenant").click()
    expect(tenant.get_by_role("status")).to_contain_text("The tenant is made", timeout=A_WHILE_MS)

    name = live.locator("#engines > tr").first.inner_text()
    kill(stack, "runengine")
    expect(live.locator("#engines > tr").first).not_to_have_text(name, timeout=2 * A_WHILE_MS)
    expect(live.locator("#engines > tr", has_text="ready")).to_have_count(1, timeout=2 * A_WHILE_MS)
    for page in watched:
        expect_state(page, "live")
    # The history knows no gap that the page made: it was asked for what was missed.
    live.locator("#span label", has_text="15 m").click()
    live.wait_for_function(HAS_MANY_VALUES, arg="sequences")
    assert longest_gap(values_of(live, "sequences")) <= 5
    console.forgive("ERR_CONNECTION_REFUSED|WebSocket connection|ERR_INCOMPLETE_CHUNKED|ERR_CONNECTION_RESET|50[0-9]")


def kill(stack: Stack, command: str) -> None:
    os.kill(stack.pid_of(command), signal.SIGKILL)
