"""The levers in a real browser: what they show, where the focus goes, and what nobody must lose."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.browsing import Console
from tests.e2e.stack import REPOSITORY, Stack

pytestmark = [pytest.mark.stack, pytest.mark.model, pytest.mark.browser]

OpenConsole = Callable[..., Console]
A_WHILE_MS = 30_000
IN_FORCE = re.compile(r"^version \d+ in force$")
# A point in the middle of an element belongs to the element: nothing lies over it, and it is within the window.
IS_IN_SIGHT = """element => {
    const { left, top, width, height } = element.getBoundingClientRect();
    return element.contains(document.elementFromPoint(left + width / 2, top + height / 2));
}"""


@pytest.fixture
def page(stack: Stack, console_page: OpenConsole) -> Page:
    """A live console whose levers can be moved."""
    page = console_page(stack).page
    expect_live(page)
    return page


@pytest.fixture
def roomy_pool(stack: Stack) -> Iterator[str]:
    """Another pool of the model, without engines."""
    run_in_django(stack, "ensure_pool('roomy', find_pool('default').model)")
    yield "roomy"
    run_in_django(stack, "find_pool('roomy').delete()")


def run_in_django(stack: Stack, code: str) -> None:
    imports = "from serving.tuning.selectors import find_pool; from serving.tuning.services import ensure_pool"
    environment = stack.environment | {"DJANGO_SETTINGS_MODULE": "serving.config.settings"}
    command = [sys.executable, "-c", f"import django; django.setup(); {imports}; {code}"]
    subprocess.run(command, cwd=REPOSITORY, env=environment, check=True)


def expect_live(page: Page) -> None:
    expect(page.locator("#badge")).to_have_attribute("data-state", "live", timeout=A_WHILE_MS)
    expect(page.locator("#levers-version")).to_have_text(IN_FORCE, timeout=A_WHILE_MS)


def expect_applied(page: Page) -> None:
    expect(page.locator("#progress")).to_contain_text("1 of 1", timeout=A_WHILE_MS)


def expect_in_sight(page: Page, selector: str) -> None:
    page.wait_for_function(f"selector => ({IS_IN_SIGHT})(document.querySelector(selector))", arg=selector)


def expect_conflict(page: Page, number: int) -> None:
    expect(page.locator("#apply-on-top")).to_have_text(f"Apply on top of version {number}", timeout=A_WHILE_MS)


def test_a_lever_that_is_typed_back_follows_what_others_store(stack: Stack, page: Page) -> None:
    lever = page.locator("#lever-max_running")
    lever.fill("8")
    lever.fill("32")
    expect(lever).to_be_focused()
    stack.tune(max_running=16)
    expect(lever).to_have_value("16", timeout=A_WHILE_MS)
    stack.tune(max_running=32)
    expect(lever).to_have_value("32", timeout=A_WHILE_MS)
    expect(page.locator("[data-lever=max_running]")).to_have_attribute("data-state", "confirmed")


def test_levers_cannot_be_moved_before_the_server_has_said_what_they_are(page: Page) -> None:
    page.route_web_socket(re.compile("/console/live/"), lambda socket: None)
    page.reload()
    expect(page.locator("#badge")).to_have_attribute("data-state", "connecting")
    expect(page.locator("#lever-max_running")).not_to_be_editable()
    expect(page.locator("[data-lever=mode] input").first).to_be_disabled()
    expect(page.locator("[data-lever=prefill_share] input[type=range]")).to_be_disabled()


def test_a_lever_stays_in_sight_when_its_change_opens_the_panel(page: Page) -> None:
    for width, height in ((1440, 900), (390, 664), (720, 450)):  # a desktop, a phone, and a desktop at 200 %
        page.set_viewport_size({"width": width, "height": height})
        for name, value in {"max_queue_wait_ms": "5", "kv_watermark_ratio": "7"}.items():
            page.locator(f"#lever-{name}").fill(value)
            expect(page.locator("#proposal")).to_have_attribute("data-state", "open")
            expect_in_sight(page, f"#lever-{name}")
        expect_in_sight(page, "#lever-kv_watermark_ratio-error")
        page.locator("#discard").click()
        expect(page.locator("#proposal")).to_have_attribute("data-state", "empty")


def test_what_became_of_a_change_is_in_sight_on_a_phone_too(stack: Stack, page: Page) -> None:
    page.set_viewport_size({"width": 390, "height": 664})
    page.locator("#lever-kv_watermark_ratio").fill("0.05")
    page.locator("#apply").click()
    expect_applied(page)
    expect_in_sight(page, "#progress")
    stack.tune(kv_watermark_ratio=0.02)


def test_enter_leads_from_the_lever_to_the_reason_and_from_there_to_the_engines(stack: Stack, page: Page) -> None:
    before = page.locator("#levers-version").inner_text()
    page.locator("#lever-max_running").fill("8")
    page.keyboard.press("Enter")
    expect(page.locator("#reason")).to_be_focused()
    expect(page.locator("#levers-version")).to_have_text(before)
    page.keyboard.type("by keyboard alone")
    page.keyboard.press("Enter")
    expect_applied(page)
    expect(page.locator("#versions > li").first).to_contain_text("by keyboard alone")
    expect(page.locator("#proposal")).to_be_focused()
    expect(page.locator("#lever-max_running")).to_have_value("8")
    stack.tune(max_running=32)
    # A later version makes it old news.
    expect(page.locator("#progress")).to_be_hidden(timeout=A_WHILE_MS)
    expect(page.locator("#levers-heading")).to_be_focused()


def test_enter_leads_to_what_is_wrong_and_discarding_by_keyboard_to_the_levers_heading(page: Page) -> None:
    page.locator("#lever-max_running").fill("0")
    page.locator("#lever-max_queue_requests").fill("20")
    page.keyboard.press("Enter")
    expect(page.locator("#lever-max_running")).to_be_focused()
    page.locator("#discard").press("Enter")
    expect(page.locator("#levers-heading")).to_be_focused()
    expect(page.locator("#lever-max_running")).to_have_value("32")


def test_a_conflict_keeps_the_focus_and_tells_its_age_and_can_be_given_a_reason(stack: Stack, page: Page) -> None:
    page.locator("#lever-max_prefill_chunk").fill("128")
    expect_conflict(page, stack.tune(batch_window_ms=5)["version"])
    page.keyboard.press("Enter")
    expect(page.locator("#reason")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#conflict")).to_be_focused()
    age = page.locator("#conflict time")
    expect(age).to_contain_text(re.compile(r"\b3 s ago"))
    boxes = [page.locator(selector).bounding_box() for selector in ("#reason", "#apply-on-top")]
    assert boxes[0] is not None
    assert boxes[1] is not None
    assert boxes[0]["y"] + boxes[0]["height"] <= boxes[1]["y"]

    page.locator("#discard-mine").focus()
    expect_conflict(page, stack.tune(batch_window_ms=0)["version"])
    expect(page.locator("#discard-mine")).to_be_focused()
    expect(page.locator("#conflict-accounts time")).to_have_count(2)
    page.keyboard.press("Enter")
    expect(page.locator("#levers-heading")).to_be_focused()
    expect(page.locator("#lever-max_prefill_chunk")).to_have_value("192")


def test_a_pool_is_named_by_keyboard_shown_in_every_window_and_refused_where_it_is_none(
    stack: Stack, page: Page, console_page: OpenConsole, roomy_pool: str
) -> None:
    page.reload()
    theirs = console_page(stack).page
    for window in (page, theirs):
        expect_live(window)
    lever = page.locator("#lever-long_prompt_pool")
    assert lever.evaluate("input => [...input.list.options].map(option => option.value)") == [roomy_pool]
    lever.fill("no pool!")
    expect(page.locator("#lever-long_prompt_pool-error")).to_contain_text("empty, or the name of a pool")
    page.keyboard.press("Enter")
    expect(lever).to_be_focused()
    page.keyboard.press("Escape")
    expect(lever).to_have_value("")
    expect(page.locator("[data-lever=long_prompt_pool]")).to_have_attribute("data-state", "confirmed")

    lever.fill("nowhere")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    told = f"or another pool of SmolLM2-135M-Instruct: {roomy_pool}, not 'nowhere'"
    expect(page.locator("#lever-long_prompt_pool-error")).to_contain_text(told, timeout=A_WHILE_MS)

    lever.fill(roomy_pool)
    expect(page.locator("#proposal-diff")).to_have_text(f"long_prompt_pool (empty) → {roomy_pool}")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect_applied(page)
    for window in (page, theirs):
        expect(window.locator("#lever-long_prompt_pool")).to_have_value(roomy_pool, timeout=A_WHILE_MS)
        expect(window.locator("[data-lever=long_prompt_pool]")).to_have_attribute("data-state", "confirmed")
    stack.tune(long_prompt_pool="")
    for window in (page, theirs):
        expect(window.locator("#lever-long_prompt_pool")).to_have_value("", timeout=A_WHILE_MS)


def test_a_slider_follows_its_number_while_it_has_the_focus(page: Page) -> None:
    number = page.locator("#lever-prefill_share")
    slider = page.locator("[data-lever=prefill_share] input[type=range]")
    slider.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(number).to_have_value("0.51")
    page.keyboard.press("Escape")
    expect(number).to_have_value("0.5")
    expect(slider).to_have_value("0.5")
    expect(slider).to_be_focused()
    number.fill("0.025")
    expect(slider).to_have_value("0.025")
    for text in ("", "7", "x"):
        number.fill(text)
        expect(number).to_have_attribute("aria-invalid", "true")
        expect(slider).to_have_value("0.025")


def test_a_proposal_and_the_view_outlive_a_reload(stack: Stack, page: Page) -> None:
    page.locator("#lever-max_queue_tokens").fill("1,000")
    page.locator("#lever-max_running").fill("0")
    page.get_by_label("Reason", exact=True).fill("in the middle of it")
    page.locator("#window").get_by_label("15 m").check()
    page.reload()
    expect_live(page)
    expect(page.locator("#lever-max_queue_tokens")).to_have_value("1,000")
    expect(page.locator("#lever-max_running")).to_have_value("0")
    expect(page.locator("#lever-max_running-error")).to_be_visible()
    expect(page.get_by_label("Reason", exact=True)).to_have_value("in the middle of it")
    expect(page.locator("#window").get_by_label("15 m")).to_be_checked()
    page.goto("about:blank")
    newer = stack.tune(batch_window_ms=5)["version"]
    page.go_back()
    expect_conflict(page, newer)
    stack.tune(batch_window_ms=0)


def test_send_and_stop_hand_each_other_the_focus_and_a_bad_prompt_is_told_so(
    stack: Stack, console_page: OpenConsole
) -> None:
    console = console_page(stack)
    page = console.page
    text = page.get_by_label("Prompt", exact=True)
    text.fill("   ")
    page.locator("#prompt-send").press("Enter")
    expect(page.locator("#prompt-error")).to_have_text("Write something first.")
    expect(text).to_be_focused()
    text.fill("x" * 20_001)
    page.locator("#prompt-send").press("Enter")
    expect(page.locator("#prompt-error")).to_contain_text("1 to 20000 characters")
    console.forgive("status of 400")
    text.fill("Tell me a very long story about a locomotive.")
    page.get_by_label("Max tokens").fill("2000")
    page.locator("#prompt-send").press("Enter")
    expect(page.locator("#prompt-stop")).to_be_focused()
    expect(page.locator("#prompt-error")).to_be_hidden()
    expect(page.locator("#prompt-answer")).not_to_be_empty(timeout=A_WHILE_MS)
    page.keyboard.press("Enter")
    expect(page.locator("#prompt-send")).to_be_focused()
    stack.wait_until_idle()
