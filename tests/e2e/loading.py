"""How a page of the console loads: what it transfers, and when it can be read and used. Measured over a slowed line.

The times and what counts as interactive are Lighthouse's (https://developer.chrome.com/docs/lighthouse/performance):
interactive is the end of the last long task (50 ms) before five quiet seconds, and the blocking time is what long tasks
take above 50 ms until then. Its desktop profile has a round trip of 40 ms and 10.24 Mbit/s, its mobile one 150 ms,
1.6 Mbit/s, and a processor four times slower.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from playwright.sync_api import CDPSession, Page

_QUIET_MS = 5000
_LONG_TASK_MS = 50
# The line's latency is applied to each request; Lighthouse's own throttling of a live page counts it so too.
_OBSERVE = """
globalThis.loadingMarks = { long: [], painted: 0, largest: 0, shifted: 0 };
const observe = (type, note) =>
  new PerformanceObserver((list) => list.getEntries().forEach(note)).observe({ type, buffered: true });
observe("longtask", ({ startTime, duration }) => loadingMarks.long.push([startTime, duration]));
observe("paint", ({ name, startTime }) => { if (name === "first-contentful-paint") loadingMarks.painted = startTime; });
observe("largest-contentful-paint", ({ startTime }) => { loadingMarks.largest = startTime; });
observe("layout-shift", ({ value, hadRecentInput }) => { if (!hadRecentInput) loadingMarks.shifted += value; });
"""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A line and a processor. The round trip is in milliseconds, throughput in kilobit/s each way."""

    name: str
    round_trip_ms: float
    kilobits: float
    slowdown: float


DESKTOP = Profile(name="desktop", round_trip_ms=40, kilobits=10_240, slowdown=1)
MOBILE = Profile(name="mobile", round_trip_ms=150, kilobits=1_638.4, slowdown=4)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """One load. Times are milliseconds since the navigation began; `shifted` is the cumulative layout shift."""

    num_requests: int
    kilobytes: float
    first_paint_ms: float
    largest_paint_ms: float
    interactive_ms: float
    blocking_ms: float
    shifted: float


def measure_load(page: Page, url: str, profile: Profile, *, is_cached: bool) -> Load:
    """Load the page as whoever has never been there, or just was (`is_cached`). The page's scripts are left running."""
    session = page.context.new_cdp_session(page)
    traffic = _Traffic(session)
    page.goto("about:blank")
    session.send("Network.enable")
    if not is_cached:
        session.send("Network.clearBrowserCache")
    throughput = profile.kilobits * 1000 / 8
    line = {"offline": False, "latency": profile.round_trip_ms}
    session.send(
        "Network.emulateNetworkConditions", {**line, "downloadThroughput": throughput, "uploadThroughput": throughput}
    )
    session.send("Emulation.setCPUThrottlingRate", {"rate": profile.slowdown})
    session.send("Page.enable")
    observer = session.send("Page.addScriptToEvaluateOnNewDocument", {"source": _OBSERVE})
    try:
        page.goto(url, wait_until="load")
        page.wait_for_function(
            f"""() => {{
                const ends = loadingMarks.long.map(([start, duration]) => start + duration);
                return performance.now() - Math.max(loadingMarks.painted, ...ends) > {_QUIET_MS};
            }}""",
            timeout=90_000,
        )
        marks = page.evaluate("loadingMarks")
    finally:
        session.send("Page.removeScriptToEvaluateOnNewDocument", {"identifier": observer["identifier"]})
        session.detach()
    ends = [start + duration for start, duration in marks["long"]]
    interactive = max([marks["painted"], *ends])
    blocking = [duration - _LONG_TASK_MS for start, duration in marks["long"] if start + duration > marks["painted"]]
    return Load(
        num_requests=traffic.num_requests,
        kilobytes=traffic.num_bytes / 1000,
        first_paint_ms=marks["painted"],
        largest_paint_ms=marks["largest"],
        interactive_ms=interactive,
        blocking_ms=sum(blocking),
        shifted=marks["shifted"],
    )


class _Traffic:
    """Counts what a session's page asks for and gets, headers included. On the caller's thread."""

    def __init__(self, session: CDPSession) -> None:
        self.num_requests = 0
        self.num_bytes = 0.0
        session.on("Network.requestWillBeSent", self._on_request)
        session.on("Network.loadingFinished", self._on_end)

    def _on_request(self, event: dict[str, Any]) -> None:
        self.num_requests += not event["request"]["url"].startswith("data:")

    def _on_end(self, event: dict[str, float]) -> None:
        self.num_bytes += event["encodedDataLength"]
