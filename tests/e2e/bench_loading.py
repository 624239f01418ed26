"""How the console's pages load: part of `make bench-console`. Prints figures; asserts nothing.

Each page is loaded by a browser that has none of it, and by one that was there before, over a desktop's line and over
a phone's (`tests.e2e.loading`); the engine is serving meanwhile. Medians of several loads.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from serving.engine.models.importer import import_model
from tests.e2e.browsing import open_console, running_browser
from tests.e2e.load import load
from tests.e2e.loading import DESKTOP, MOBILE, Load, Profile, measure_load
from tests.e2e.stack import REPOSITORY, Stack

_PAGES = (
    "",
    "steps/",
    "requests/",
    "tuning/",
    "tenants/",
    "fleet/",
    "playground/",
    "audit/",
    "alerts/",
    "first-steps/",
)
_NUM_LOADS = 3
_SIZES = {DESKTOP.name: (1440, 900), MOBILE.name: (390, 844)}
_HEADINGS = ("page", "line", "cache", "requests", "kB", "FCP", "LCP", "interactive", "blocking", "CLS")


def main() -> None:
    """Start a stack, load every page, print a table. Times are in milliseconds."""
    model = import_model(None, into=REPOSITORY / "var" / "test-models")
    with tempfile.TemporaryDirectory(prefix="footplate-bench-") as name:
        stack = Stack.over(Path(name), model).start()
        try:
            _say(_HEADINGS)
            with running_browser() as browser, load(stack, num_clients=2):
                for profile in (DESKTOP, MOBILE):
                    page = open_console(browser, stack, size=_SIZES[profile.name]).page
                    for path in _PAGES:
                        url = f"{stack.url}/console/{path}"
                        for is_cached in (False, True):
                            loads = [measure_load(page, url, profile, is_cached=is_cached) for _ in range(_NUM_LOADS)]
                            _say(_row(path or "live", profile, loads, is_cached=is_cached))
                    page.context.close()
        finally:
            stack.stop()


def _row(path: str, profile: Profile, loads: list[Load], *, is_cached: bool) -> tuple[str, ...]:
    def median(name: str) -> float:
        return statistics.median(getattr(each, name) for each in loads)

    times = ("first_paint_ms", "largest_paint_ms", "interactive_ms", "blocking_ms")
    return (
        path,
        profile.name,
        "warm" if is_cached else "cold",
        f"{median('num_requests'):.0f}",
        f"{median('kilobytes'):.0f}",
        *(f"{median(name):.0f}" for name in times),
        f"{median('shifted'):.3f}",
    )


def _say(cells: tuple[str, ...]) -> None:
    first, *others = cells
    sys.stdout.write(f"{first:<12}" + "".join(f"{cell:>12}" for cell in others) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
