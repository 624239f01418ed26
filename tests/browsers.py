"""The browser that tests drive: the system's Chromium or Chrome, else Playwright's own.

Usage: python tests/browsers.py, which installs one where none is found, or ends with one line that says so.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find_browser() -> Path | None:
    """A browser that starts, or None."""
    on_path = [Path(found) for name in NAMES if (found := shutil.which(name))]
    return next((path for path in on_path if _starts(path)), None) or _find_playwrights_own()


def main() -> None:
    """Make sure that there is a browser."""
    if find_browser() is not None:
        return
    print("footplate: installing a browser for the tests", flush=True)
    _run([sys.executable, "-m", "playwright", "install", "chromium"])
    if find_browser() is None and shutil.which("apt-get") and os.geteuid() == 0:
        _run(["apt-get", "update", "-qq"])
        _run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"])
    if find_browser() is None:
        sys.exit(
            "footplate: the tests need a browser: none of " + ", ".join(NAMES) + " is on the PATH and starts, "
            "and neither `playwright install chromium` nor apt-get could bring one"
        )


def _find_playwrights_own() -> Path | None:
    with sync_playwright() as playwright:
        path = Path(playwright.chromium.executable_path)
    return path if path.is_file() and _starts(path) else None


def _starts(path: Path) -> bool:
    # Some distributions put a note in the browser's place, others a browser without its libraries.
    try:
        done = subprocess.run([path, "--version"], capture_output=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and any(character.isdigit() for character in done.stdout.decode(errors="replace"))


def _run(command: list[str]) -> None:
    # What it says matters only where no browser is found in the end, and then the last line says what to do.
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    quiet = subprocess.DEVNULL
    subprocess.run(command, env=environment, stdin=quiet, stdout=quiet, stderr=quiet, check=False)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("footplate: interrupted")
