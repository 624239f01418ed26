"""The console in a real browser: pages that a signed-in operator has open, and whatever the browser complains of."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

from tests.browsers import find_browser
from tests.e2e.stack import REPOSITORY, Stack

ARGUMENTS = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
)
AXE = REPOSITORY / "node_modules" / "axe-core" / "axe.min.js"
_REPORT_VIOLATIONS = """
addEventListener("securitypolicyviolation", (event) =>
  reportViolation(`${event.effectiveDirective} ${event.blockedURI} ${event.sourceFile}:${event.lineNumber}`));
"""


@dataclasses.dataclass
class Console:
    """A page of the console, and what the browser complained of while it was open. On the test's thread."""

    page: Page
    complaints: list[str] = dataclasses.field(default_factory=list)

    def watch(self) -> None:
        """Note, from now on, errors on the browser's console, uncaught ones, breaches of the policy, and requests that
        failed; those that the page itself called off are none."""
        self.page.expose_function("reportViolation", lambda text: self.complaints.append(f"policy: {text}"))
        self.page.add_init_script(_REPORT_VIOLATIONS)
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.complaints.append(f"uncaught: {error}"))
        self.page.on("requestfailed", self._on_failed_request)

    def forgive(self, pattern: str) -> None:
        """Forget complaints that match, which the test brought about."""
        self.complaints[:] = [text for text in self.complaints if not re.search(pattern, text)]

    def sign_in(self, stack: Stack, path: str) -> None:
        """Sign in as the operator of the first start, and end on `path`."""
        self.page.goto(f"{stack.url}/console/login/?next={path}")
        self.page.get_by_label("Name").fill(stack.first_run["username"])
        self.page.get_by_label("Password").fill(stack.first_run["password"])
        self.page.get_by_label("Password").press("Enter")
        self.page.wait_for_url(f"{stack.url}{path}")

    def accessibility_problems(self, within: str = "body", *, rules: Sequence[str] = ()) -> list[str]:
        """What axe-core finds wrong inside the element of this selector, by these rules or all: a line a rule and
        element."""
        if not self.page.evaluate("'axe' in globalThis"):
            # Evaluated by the browser's debugger, which no policy keeps out.
            self.page.evaluate(AXE.read_text(encoding="utf-8"))
        options = {"runOnly": list(rules)} if rules else {}
        found = self.page.evaluate("([within, options]) => axe.run(within, options)", [within, options])
        return [
            f"{problem['id']}: {problem['help']}: {' '.join(map(str, node['target']))}: {node['failureSummary']}"
            for problem in found["violations"]
            for node in problem["nodes"]
        ]

    def check(self, *schemes: str) -> None:
        """Assert that the page fits and axe-core finds nothing wrong. What depends on the scheme is looked at in each
        of `schemes`, all else but once."""
        for number, scheme in enumerate(schemes):
            self.page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
            problems = self.accessibility_problems(rules=["color-contrast"] if number else [])
            assert problems == [], (self.page.url, scheme)
        overhang = self.page.evaluate("document.documentElement.scrollWidth - innerWidth")
        assert overhang <= 0, self.page.url

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning", "assert"}:
            self.complaints.append(f"{message.type}: {message.text} ({message.location['url']})")

    def _on_failed_request(self, request: Request) -> None:
        if request.failure != "net::ERR_ABORTED":
            self.complaints.append(f"request: {request.method} {request.url}: {request.failure}")


@contextmanager
def running_browser() -> Iterator[Browser]:
    """A browser without a window. An event loop counts as running until it ends: no async test meanwhile."""
    path = find_browser()
    assert path is not None, "there is no browser; `make browser` installs one"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=Path(path), args=[*ARGUMENTS])
        yield browser
        browser.close()


def open_console(
    browser: Browser,
    stack: Stack,
    path: str = "/console/",
    *,
    size: tuple[int, int] = (1440, 900),
    scheme: str = "light",
) -> Console:
    """A window of its own, with its own session, signed in and watched. `size` is in CSS pixels."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if scheme == "dark" else "light",
        locale="en-GB",
        timezone_id="UTC",
    )
    console = Console(context.new_page())
    console.watch()
    console.sign_in(stack, path)
    return console
