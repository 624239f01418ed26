"""The pages about tenants in a real browser: an administrator lets someone in, watches what they use, and ends it."""

from __future__ import annotations

import csv
import itertools
import re
from collections.abc import Callable
from pathlib import Path

import httpx
import openai
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browsing import Console, open_console
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.model, pytest.mark.browser]

OpenConsole = Callable[..., Console]
TENANTS = "/console/tenants/"
KEY = re.compile(r"^fp-[0-9a-f]{12}-[A-Za-z0-9_-]{43}$")
A_WHILE_MS = 30_000
NAMES = (f"tenant of a test {number}" for number in itertools.count())
BARS_DRAWN = """() => Chart.getChart(document.querySelector("#usage-chart canvas"))
    .getDatasetMeta(0).data.filter(bar => bar.height > 0).length"""


@pytest.fixture
def console(stack: Stack, console_page: OpenConsole) -> Console:
    console = console_page(stack, TENANTS)
    console.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    return console


@pytest.fixture
def name() -> str:
    return next(NAMES)


def make_tenant(page: Page, name: str, **quotas: str) -> str:
    """The path of a new tenant, whose keys the page shows then."""
    page.get_by_role("link", name="New tenant").click()
    page.get_by_label("Name", exact=True).fill(name)
    for quota, text in quotas.items():
        page.locator(f"#{quota}").fill(text)
    page.get_by_role("button", name="Make the tenant").click()
    expect(page.get_by_role("status")).to_contain_text("The tenant is made")
    return page.url.removesuffix("keys/")


def make_key(page: Page) -> str:
    """A new key's text, read from the one page that shows it."""
    page.get_by_role("button", name="Make the key").click()
    secret = page.locator("#secret")
    expect(secret).to_have_text(KEY)
    return secret.inner_text()


def ask(stack: Stack, key: str, *, max_tokens: int = 8) -> int:
    """The tokens that a short request used."""
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=key, max_retries=0) as client:
        usage = client.completions.create(
            model="SmolLM2-135M-Instruct", prompt="Once upon a time", max_tokens=max_tokens
        ).usage
    assert usage is not None
    return usage.total_tokens


def test_someone_is_let_in_watched_and_shown_out(stack: Stack, console: Console, name: str) -> None:
    """C84, C86."""
    page = console.page
    tenant = make_tenant(page, name, tokens_per_minute="1000")
    key = make_key(page)
    page.get_by_role("button", name="Copy the key").click()
    expect(page.locator("#copied")).to_have_text("Copied.")
    assert page.evaluate("navigator.clipboard.readText()") == key
    # To load the page again neither shows the key again nor makes another.
    page.reload()
    expect(page.get_by_role("row")).to_have_count(2)
    assert key not in page.content()

    used = ask(stack, key)
    page.goto(tenant)
    expect(page.get_by_text(f"{used} of 1,000 tokens in the last 60 seconds")).to_be_visible()
    page.goto(f"{tenant}usage/")
    for _ in range(30):  # the ledger stores once a second
        if page.get_by_role("row", name=re.compile(rf"\b{used}$")).count():
            break
        page.wait_for_timeout(500)
        page.reload()
    expect(page.get_by_role("row", name=re.compile(rf"^\d{{4}}-.* 1 .* {used}$"))).to_be_visible()
    page.wait_for_function(f"() => ({BARS_DRAWN})() === 1")
    with page.expect_download() as download:
        page.get_by_role("link", name="CSV").click()
    path = Path(download.value.path())
    lines = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
    assert [(line["tenant"], line["requests"], line["tokens"]) for line in lines] == [(name, "1", str(used))]

    page.goto(f"{tenant}keys/")
    page.get_by_role("link", name="Revoke").click()
    page.get_by_label("Reason").fill("the test is over")
    page.get_by_role("button", name="Revoke the key").click()
    expect(page.get_by_role("status")).to_contain_text("is revoked")
    with pytest.raises(openai.AuthenticationError):
        ask(stack, key)
    page.goto(tenant)
    expect(page.get_by_role("row", name=re.compile("key revoked.*the test is over"))).to_be_visible()


def test_two_administrators_at_once_agree_on_quotas(
    stack: Stack, console: Console, console_page: OpenConsole, name: str
) -> None:
    tenant = make_tenant(console.page, name, tokens_per_minute="1000")
    path = tenant.removeprefix(stack.url) + "quotas/"
    first, second = console.page, console_page(stack, path)
    first.goto(stack.url + path)
    first.locator("#tokens_per_minute").fill("2000")
    second.page.locator("#tokens_per_day").fill("50000")
    second.page.get_by_label("Reason").fill("for the launch")
    first.get_by_role("button", name="Store").click()
    expect(first.get_by_role("status")).to_contain_text("The quotas are stored")
    second.page.get_by_role("button", name="Store").click()
    expect(second.page.get_by_role("alert")).to_contain_text("version 2 of the quotas is in force, not 1")
    expect(second.page.get_by_role("alert")).to_contain_text("tokens_per_minute 1,000 → 2,000")
    expect(second.page.locator("#tokens_per_minute")).to_have_value("2000")
    expect(second.page.locator("#tokens_per_day")).to_have_value("50000")
    expect(second.page.get_by_label("Reason")).to_have_value("for the launch")
    second.forgive("409")
    second.page.get_by_role("button", name="Store on top").click()
    expect(second.page.get_by_role("row", name=re.compile("3 in force.*for the launch"))).to_be_visible()
    first.reload()
    first.get_by_role("button", name=re.compile(r"^Roll back to this\W+version 1$")).click()
    expect(first.get_by_role("status")).to_contain_text("Rolled back to version 1")
    expect(first.locator("#tokens_per_minute")).to_have_value("1000")
    expect(first.locator("#tokens_per_day")).to_have_value("")


def test_a_tenant_is_made_and_changed_by_keyboard_alone(console: Console, name: str) -> None:
    page = console.page
    keyboard = page.keyboard

    def reach(label: str, *, role: str | None = None) -> None:
        target = page.get_by_role(role, name=label) if role else page.get_by_label(label, exact=True)  # type: ignore[arg-type]
        for _ in range(60):
            keyboard.press("Tab")
            if target.evaluate("element => element === document.activeElement"):
                return
        raise AssertionError(f"{label!r} cannot be reached")

    page.locator("#q").focus()
    keyboard.press("Shift+Tab")
    expect(page.get_by_role("link", name="New tenant")).to_be_focused()
    keyboard.press("Enter")
    page.wait_for_url(f"**{TENANTS}new/")
    reach("Name")
    keyboard.type(name)
    reach("Weight")
    keyboard.press("Control+A")
    keyboard.type("heavy")
    keyboard.press("Enter")
    weight = page.get_by_label("Weight", exact=True)
    expect(weight).to_have_attribute("aria-invalid", "true")
    expect(page.locator("#weight-error")).to_contain_text("weight must be a number from 0.01 to 1000, not 'heavy'")
    expect(weight).to_have_value("heavy")
    console.forgive("400")
    reach("Weight")
    keyboard.press("Control+A")
    keyboard.type("2")
    keyboard.press("Enter")
    expect(page.get_by_role("status")).to_contain_text("The tenant is made")
    reach("Edit tenant", role="link")
    keyboard.press("Enter")
    reach("Enabled")
    keyboard.press("Space")
    reach("Store", role="button")
    keyboard.press("Enter")
    expect(page.get_by_text("no: none of its keys opens")).to_be_visible()


@pytest.fixture(scope="module")
def furnished(stack: Stack, browser: Browser) -> str:
    """The path of a tenant that has something on each of its pages."""
    console = open_console(browser, stack, TENANTS)
    tenant = make_tenant(console.page, next(NAMES), tokens_per_minute="1000", tokens_per_day="10")
    make_key(console.page)
    console.page.goto(f"{tenant}keys/")
    key = make_key(console.page)
    console.page.context.close()
    httpx.post(
        f"{stack.url}/v1/completions",
        headers={"Authorization": f"Bearer {key}"},
        json={"model": "SmolLM2-135M-Instruct", "prompt": "Hi", "max_tokens": 4},
        timeout=60,
    )
    return tenant.removeprefix(stack.url)


@pytest.mark.parametrize(
    ("size", "schemes"), [((1440, 900), ("light", "dark")), ((390, 844), ("dark",))], ids=["desktop", "phone"]
)
def test_pages_are_accessible_and_fit(
    stack: Stack, console_page: OpenConsole, furnished: str, size: tuple[int, int], schemes: tuple[str, ...]
) -> None:
    """What is narrow has the same colours."""
    console = console_page(stack, TENANTS, size=size)
    page = console.page
    for path in (
        TENANTS,
        f"{TENANTS}?sort=tokens&days=7",
        f"{TENANTS}new/",
        furnished,
        f"{furnished}edit/",
        f"{furnished}quotas/",
        f"{furnished}keys/",
        f"{furnished}usage/?days=90",
    ):
        page.goto(stack.url + path)
        console.check(*schemes)
    page.goto(f"{stack.url}{furnished}keys/")
    page.locator("tbody th a").first.click()
    console.check(*schemes)
    page.get_by_role("link", name=re.compile("^Revoke")).click()
    console.check(*schemes)
    page.goto(f"{stack.url}{furnished}keys/")
    make_key(page)
    console.check(*schemes)
    page.goto(f"{stack.url}{furnished}quotas/")
    page.locator("#tokens_per_day").fill("none")
    page.get_by_role("button", name="Store").click()
    expect(page.locator("#tokens_per_day-error")).to_be_visible()
    console.check(*schemes)
    console.forgive("400")


def test_pages_work_without_scripts(stack: Stack, browser: Browser, furnished: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    Console(page).sign_in(stack, f"{furnished}usage/")
    expect(page.locator("#usage-chart")).to_be_hidden()
    expect(page.locator("#days tbody tr")).to_have_count(30)
    page.goto(f"{stack.url}{furnished}quotas/")
    page.locator("#max_output_tokens").fill("77")
    page.get_by_role("button", name="Store").click()
    expect(page.get_by_text("The quotas are stored")).to_be_visible()
    page.goto(f"{stack.url}{furnished}keys/")
    page.get_by_role("button", name="Make the key").click()
    expect(page.locator("#secret")).to_have_text(KEY)
    expect(page.locator("#copy")).to_be_hidden()
    context.close()


def test_a_theme_that_changes_repaints_the_chart(stack: Stack, console_page: OpenConsole, furnished: str) -> None:
    page = console_page(stack, f"{furnished}usage/").page
    color = """() => Chart.getChart(document.querySelector("#usage-chart canvas")).data.datasets[0].backgroundColor"""
    page.wait_for_function(f"() => ({color})() !== undefined")
    light = page.evaluate(color)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(f"light => ({color})() !== light", arg=light)
