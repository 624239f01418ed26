"""The Steps page in a real browser, over a real engine: an operator watches the batch, stops it, and looks back."""

from __future__ import annotations

import re
from collections.abc import Callable

import openai
import pytest
from playwright.sync_api import Page, Position, expect

from tests.e2e.browsing import Console
from tests.e2e.load import load
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.model, pytest.mark.browser]

OpenConsole = Callable[..., Console]
STEPS = "/console/steps/"
A_WHILE_MS = 30_000
# Pixels of the picture's first lanes that have the colour of decodes.
DECODES_DRAWN = """() => {
    const canvas = document.querySelector("#picture canvas");
    const probe = new OffscreenCanvas(1, 1).getContext("2d");
    probe.fillStyle = getComputedStyle(document.querySelector(".sign[data-kind=decode]")).backgroundColor;
    probe.fillRect(0, 0, 1, 1);
    const wanted = probe.getImageData(0, 0, 1, 1).data;
    const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
    copy.drawImage(canvas, 0, 0);
    const data = copy.getImageData(0, 128 * devicePixelRatio, canvas.width, 120 * devicePixelRatio).data;
    let drawn = 0;
    for (let at = 0; at < data.length; at += 4)
        drawn += [0, 1, 2].every(channel => Math.abs(data[at + channel] - wanted[channel]) < 12);
    return drawn;
}"""


def expect_state(page: Page, state: str) -> None:
    expect(page.locator("#badge")).to_have_attribute("data-state", state, timeout=A_WHILE_MS)


def spoken(page: Page) -> str:
    return str(page.locator("#picture").get_attribute("aria-valuetext"))


def a_cell_of(page: Page) -> Position:
    """A place of the first lane where a sequence is drawn; the pointer is left on it. Which steps are in sight, and so
    where the lane is held, depends on what ran before."""
    picture = page.locator("#picture")
    for x in range(int(picture.evaluate("each => each.clientWidth")) - 12, 0, -24):
        place: Position = {"x": x, "y": 135}
        picture.hover(position=place)
        page.evaluate("() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
        if page.locator(".steps-tip-cell").is_visible():
            return place
    raise AssertionError("no cell of the first lane is in sight")


def test_the_batch_is_drawn_as_it_runs_and_can_be_looked_back_over(stack: Stack, console_page: OpenConsole) -> None:
    console = console_page(stack, STEPS)
    page = console.page
    expect_state(page, "live")
    picture = page.locator("#picture")
    with load(stack, num_clients=4):
        page.wait_for_function(f"() => ({DECODES_DRAWN})() > 2000", timeout=A_WHILE_MS)
        expect(page.locator("[data-figure=batch] dd")).to_have_text(re.compile("up to 4"), timeout=A_WHILE_MS)

        page.get_by_role("button", name="Pause").click()
        expect_state(page, "paused")
        in_sight = page.locator("[data-figure=steps] dd").inner_text()
        picture.focus()
        page.keyboard.press("ArrowLeft")
        heading = page.locator("#step-heading")
        expect(heading).to_have_text(re.compile(r"^Step [\d,]+$"))
        first = heading.inner_text()
        assert spoken(page).startswith(f"{first}, ")
        page.keyboard.press("ArrowLeft")
        expect(heading).not_to_have_text(first)
        assert int(str(picture.get_attribute("aria-valuenow"))) == int(first[5:].replace(",", "")) - 1
        expect(page.locator("#step-members tr").first).to_be_visible()
        expect(page).to_have_url(re.compile(r"#step=\d+$"))
        shared = page.url
        page.keyboard.press("+")
        expect(page.locator("#zoom")).to_have_text("8 px")
        page.keyboard.press("-")
        expect(page.locator("[data-figure=steps] dd")).to_have_text(in_sight)
        page.keyboard.press("Escape")
        expect_state(page, "live")
        assert spoken(page) == "the newest step, as it comes"

    # Whoever opens the page now still sees what was, or just what the address names, and is led to its request.
    visitor = console_page(stack, STEPS)
    later = visitor.page
    later.wait_for_function(f"() => ({DECODES_DRAWN})() > 2000", timeout=A_WHILE_MS)
    later.goto(shared)
    expect(later.locator("#picture")).to_have_attribute("aria-valuenow", shared.partition("#step=")[2])
    tip = later.locator(".steps-tip")
    place = a_cell_of(later)
    expect(tip).to_contain_text(re.compile(r"Step [\d,]+ · .*forward", re.DOTALL))
    expect(tip.locator(".steps-tip-cell")).to_have_text(re.compile(r"^[0-9a-f]{6}(-\d+)?: \w+"))
    link = page.evaluate("() => document.querySelector('#steps').dataset.requestsUrl")
    later.locator("#picture").click(position=place)
    later.wait_for_url(re.compile(rf"{link}req_[0-9a-f]{{32}}/$"))
    visitor.forgive("404")  # the log may not have it yet


@pytest.mark.parametrize(("size", "scheme"), [((1440, 900), "dark"), ((390, 844), "light")], ids=["desktop", "phone"])
def test_the_page_is_accessible_and_fits(
    stack: Stack,
    console_page: OpenConsole,
    client: openai.OpenAI,
    model: str,
    size: tuple[int, int],
    scheme: str,
) -> None:
    console = console_page(stack, STEPS, size=size, scheme=scheme)
    page = console.page
    client.completions.create(model=model, prompt="A list of words:", max_tokens=16, extra_body={"ignore_eos": True})
    page.wait_for_function(f"() => ({DECODES_DRAWN})() > 500", timeout=A_WHILE_MS)
    page.locator("#picture").focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#step-members tr").first).to_be_visible()
    assert console.accessibility_problems() == []
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
