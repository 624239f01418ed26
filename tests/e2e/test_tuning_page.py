"""The Tuning page in a real browser: a preset is looked at, applied and taken back, and what it did is told."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import httpx
import msgspec
import pytest
from playwright.sync_api import Browser, Page, expect
from redis import Redis

from serving.config.env import embedded_socket
from serving.contracts import keys
from serving.contracts.ids import PoolName
from serving.contracts.messages import EngineSnapshot, encode
from tests.e2e.browsing import Console
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.model, pytest.mark.browser]

OpenConsole = Callable[..., Console]
POOL = PoolName("default")
TUNING = "/console/pools/default/tuning/"
A_WHILE_MS = 30_000
CHAT_UNDONE = {"max_batch_tokens": 192, "max_prefill_chunk": 192, "prefill_share": 0.5, "batch_window_ms": 0}


@pytest.fixture
def as_it_was(stack: Stack) -> Iterator[None]:
    """The tunables are the defaults again at the end, whatever the test has done to them."""
    yield
    stack.tune(max_running=31, **CHAT_UNDONE)
    stack.tune(max_running=32)


@pytest.fixture
def made_up_engine(stack: Stack) -> Iterator[str]:
    """The id of a second engine, which takes work as it says, and does none; what it tries is taken back at the end."""
    real = stack.snapshot()["engines"][0]
    engine = msgspec.convert({**real, "engine_id": "zz-made-up", "name": "zz-made-up"}, EngineSnapshot)
    with Redis.from_url(f"unix://{embedded_socket(stack.home)}") as redis:
        redis.set(keys.heartbeat(engine.engine_id), encode(engine), px=120_000)
        redis.zadd(keys.engines(POOL), {engine.engine_id: redis.time()[0]})
        yield engine.engine_id
        path = f"{stack.url}/ops/v1/pools/{POOL}/canary"
        canary = httpx.get(path, headers=stack.headers).json()["canary"]
        if canary is not None:
            httpx.post(f"{path}/withdraw", headers=stack.headers, json={"version": canary["version"]})
        redis.zrem(keys.engines(POOL), engine.engine_id)
        redis.delete(keys.heartbeat(engine.engine_id), keys.control(engine.engine_id))


def expect_live(page: Page) -> None:
    expect(page.locator("#badge")).to_have_attribute("data-state", "live", timeout=A_WHILE_MS)


def test_a_preset_is_looked_at_applied_with_a_guardrail_and_rolled_back(
    stack: Stack, console_page: OpenConsole, as_it_was: None
) -> None:
    console = console_page(stack, TUNING)
    page = console.page
    expect_live(page)
    expect(page.locator("[data-preset=mixed]")).to_contain_text("in force")
    page.get_by_role("link", name="Look at chat").press("Enter")
    expect(page.locator("#reason")).to_be_focused()
    expect(page.locator("#reason")).to_have_value("preset chat")
    expect(page.locator("#proposal-diff")).to_contain_text("max_batch_tokens 192 → 128 tokens")
    expect(page.locator("#apply")).to_have_text("Apply 3 changes")

    # What fights what is told while it is typed.
    page.locator("#lever-batch_window_ms").fill("9999")
    page.locator("#lever-slo_ttft_ms").fill("300")
    expect(page.locator("#conflicts")).to_contain_text("whoever waits for company misses it")
    page.locator("#lever-slo_ttft_ms").press("Escape")
    page.locator("#lever-batch_window_ms").press("Escape")
    expect(page.locator("#conflicts")).to_be_empty()

    # A guardrail that is typed wrongly keeps everything where it is.
    page.locator("#guardrail").check()
    page.locator("#guardrail-bound").fill("soon")
    page.locator("#apply").click()
    expect(page.locator("#terms-error")).to_have_text("guardrail bound must be a number, not 'soon'")
    expect(page.locator("#guardrail-bound")).to_be_focused()
    page.locator("#guardrail-bound").fill("-1")
    page.locator("#apply").click()
    expect(page.locator("#proposal-error")).to_contain_text("guardrail bound must be a number from 0 to 3600000")
    page.locator("#guardrail-bound").fill("3600000")
    assert console.accessibility_problems("#levers") == []
    page.locator("#apply").click()
    expect(page.locator("#progress")).to_contain_text("1 of 1", timeout=A_WHILE_MS)
    expect(page.locator("#guardrail")).not_to_be_checked()

    newest = page.locator("#standing tbody tr").first
    expect(newest).to_contain_text("in force", timeout=A_WHILE_MS)
    expect(newest).to_contain_text("preset chat")
    expect(newest).to_contain_text("Guardrail rolls back at TTFT p95 above 3,600,000 ms for 60 s")
    expect(newest).to_contain_text("Not enough yet")
    page.locator("#standing tbody tr").nth(1).get_by_role("button", name="Roll back to this").click()
    expect(page.get_by_role("status").filter(has_text="Rolled back to version")).to_be_visible()
    expect(page.locator("tbody tr").nth(1)).to_contain_text("Guardrail superseded")


def test_a_change_is_tried_on_the_engine_that_is_chosen_and_taken_back(
    stack: Stack, console_page: OpenConsole, as_it_was: None, made_up_engine: str
) -> None:
    console = console_page(stack, TUNING)
    page = console.page
    expect_live(page)
    page.locator("#lever-max_running").fill("31")
    expect(page.locator("#canary-engine")).to_be_hidden()
    page.locator("#canary").check()
    page.locator("#canary-engine").select_option(made_up_engine)
    page.locator("#apply").click()
    expect(page.locator("#progress")).to_contain_text(f"tried on {made_up_engine} alone", timeout=A_WHILE_MS)
    trial = page.locator("#trial")
    expect(trial).to_contain_text(f"on {made_up_engine} since")
    expect(trial).to_contain_text("Too few requests to tell yet", timeout=A_WHILE_MS)
    assert console.accessibility_problems("#trial") == []
    page.goto(f"{stack.url}/console/pools/{POOL}/")
    notice = page.locator("#trial-notice")
    expect(notice).to_contain_text(f"is tried on {made_up_engine} alone", timeout=A_WHILE_MS)
    assert console.accessibility_problems("#trial-notice") == []
    notice.get_by_role("link", name="See Tuning").click()
    page.set_viewport_size({"width": 390, "height": 844})
    console.check("dark")
    page.get_by_role("button", name="Take it back").press("Enter")
    expect(page.get_by_role("status").filter(has_text="is taken back by version")).to_be_visible()
    expect(page.locator("#trial")).to_be_empty()


def test_pages_are_accessible_and_fit(stack: Stack, console_page: OpenConsole) -> None:
    console = console_page(stack, TUNING)
    page = console.page
    expect_live(page)
    page.get_by_role("link", name="Look at bulk").click()
    # At once: what is typed after the click stays.
    page.locator("#lever-max_running").fill("5000")
    expect(page.locator("#lever-max_running-error")).to_be_visible()
    expect(page.locator("#lever-max_batch_tokens")).to_have_value("4096")
    expect(page.locator("#lever-max_running")).to_have_value("5000")
    page.locator("#guardrail").check()
    for width, height in ((1440, 900), (390, 844)):
        page.set_viewport_size({"width": width, "height": height})
        console.check("light", "dark")
    page.locator("#discard").click()
    for path in (f"{TUNING}presets/bulk/", "/console/pools/default/versions/"):
        page.goto(stack.url + path)
        console.check("dark")


def test_a_preset_is_applied_without_scripts(stack: Stack, browser: Browser, as_it_was: None) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    Console(page).sign_in(stack, TUNING)
    page.get_by_role("link", name="Look at chat").click()
    page.get_by_label("Reason").fill("by a form alone")
    page.get_by_role("button", name="Apply preset chat").click()
    expect(page.get_by_text(re.compile(r"Preset chat: version \d+ is stored"))).to_be_visible()
    expect(page.locator("#standing tbody tr").first).to_contain_text("by a form alone")
    page.get_by_role("link", name=re.compile("All figures")).first.click()
    expect(page.get_by_role("row", name=re.compile("^TTFT p95"))).to_contain_text("too few to compare")
    context.close()
