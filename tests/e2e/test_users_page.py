"""The pages about users in a real browser: an administrator lets somebody in, who chooses a password and is let go."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.browsing import Console, open_console
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.model, pytest.mark.browser]

OpenConsole = Callable[..., Console]
USERS = "/console/users/"
NAMES = (f"user of a test {number}" for number in itertools.count())
OWN = "chosen in a browser"


def make_user(page: Page, name: str, role: str = "operator") -> str:
    """A new user's password, read from the one page that shows it."""
    page.get_by_role("link", name="New user").click()
    page.get_by_label("Name", exact=True).fill(name)
    page.get_by_label("Role", exact=True).select_option(role)
    page.get_by_role("button", name="Make the user").click()
    expect(page.get_by_text("The user is made")).to_be_visible()
    return page.locator("#secret").inner_text()


def sign_in(page: Page, name: str, password: str) -> None:
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()


def test_somebody_is_let_in_and_out_again(stack: Stack, console_page: OpenConsole, browser: Browser) -> None:
    console = console_page(stack, USERS)
    page, name = console.page, next(NAMES)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    password = make_user(page, name)
    page.get_by_role("button", name="Copy the password").click()
    expect(page.locator("#copied")).to_have_text("Copied.")
    assert page.evaluate("navigator.clipboard.readText()") == password
    # To load the page again shows the user, not the password.
    page.reload()
    expect(page.get_by_role("heading", name=name)).to_be_visible()
    assert password not in page.content()

    window = browser.new_context()
    guest = window.new_page()
    guest.goto(f"{stack.url}/console/steps/")
    sign_in(guest, name, password)
    guest.wait_for_url("**/console/account/")
    expect(guest.get_by_text("Somebody else knows your password")).to_be_visible()
    guest.get_by_label("Password now").fill(password)
    guest.get_by_label("New password", exact=True).fill(OWN)
    guest.get_by_label("New password again").fill(OWN)
    guest.keyboard.press("Enter")
    expect(guest.get_by_text("Your password is changed.")).to_be_visible()
    guest.get_by_role("link", name="Live", exact=True).click()
    expect(guest.locator("#lever-max_running")).to_be_enabled()
    expect(guest.get_by_role("link", name="Users")).to_have_count(0)

    page.goto(stack.url + USERS)
    expect(page.get_by_role("row", name=re.compile(f"{name} operator the user’s own 1"))).to_be_visible()
    page.get_by_role("link", name=name).click()
    # The keyboard alone: from the box to the button.
    page.get_by_label("Enabled").focus()
    page.keyboard.press("Space")
    for _ in range(2):
        page.keyboard.press("Tab")
    expect(page.get_by_role("button", name="Store")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").filter(has_text="The change is stored")).to_be_visible()
    guest.goto(f"{stack.url}/console/")
    sign_in(guest, name, OWN)
    expect(guest.get_by_role("alert").first).to_contain_text("do not match an operator")
    window.close()


@pytest.fixture(scope="module")
def furnished(stack: Stack, browser: Browser) -> str:
    """The path of a user."""
    console = open_console(browser, stack, USERS)
    make_user(console.page, next(NAMES), "auditor")
    path = console.page.locator("#key-made").get_attribute("data-address")
    console.page.context.close()
    assert path is not None
    return path


@pytest.mark.parametrize(
    ("size", "scheme"), [((1440, 900), "light"), ((390, 844), "dark")], ids=["desktop-light", "phone-dark"]
)
def test_pages_are_accessible_and_fit(
    stack: Stack, console_page: OpenConsole, furnished: str, size: tuple[int, int], scheme: str
) -> None:
    console = console_page(stack, USERS, size=size, scheme=scheme)
    page = console.page
    for path in (USERS, f"{USERS}new/", furnished, "/console/account/"):
        page.goto(stack.url + path)
        assert console.accessibility_problems() == [], path
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
    page.get_by_label("Password now").fill("not this one")
    page.get_by_label("New password", exact=True).fill("short")
    page.get_by_label("New password again").fill("short")
    page.get_by_role("button", name="Change it").click()
    expect(page.locator("#old_password-error")).to_be_visible()
    assert console.accessibility_problems() == []
    console.forgive("400")
