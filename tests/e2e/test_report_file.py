"""A run's report as a file of its own, in a real browser: no server, no network, charts and all."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Browser

from serving.contracts.tunables import Tunables
from serving.lab.costs.default import DEFAULT_COST, DEFAULT_ENVELOPE
from serving.lab.reports.plots import plots_of
from serving.lab.reports.report import Report, report_html
from serving.lab.simulator.simulation import simulate
from serving.lab.workloads.arrivals import Poisson
from serving.lab.workloads.distributions import Fixed
from serving.lab.workloads.workload import RequestClass, Slo, Workload
from tests.e2e.browsing import Console
from tests.e2e.stack import REPOSITORY

pytestmark = pytest.mark.browser

HOSTILE = "a run of </script><img src=https://example.com/x onerror=alert(1)> & others"
_NUM_PIXELS = """(canvas) => {
  const pixels = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  let drawn = 0;
  for (let at = 3; at < pixels.length; at += 4) drawn += pixels[at] > 0;
  return drawn;
}"""


def a_report() -> Report:
    workload = Workload(
        name="a workload",
        arrivals=Poisson(rate=4.0),
        classes=(
            RequestClass(
                name="chat", prompt_tokens=Fixed(40), output_tokens=Fixed(12), slo=Slo(ttft_ms=500, itl_ms=100)
            ),
        ),
        duration_seconds=30,
        warm_up_seconds=3,
    )
    played = simulate(workload, tunables=Tunables(), envelope=DEFAULT_ENVELOPE, cost=DEFAULT_COST, num_processes=1)
    summary = msgspec.structs.replace(played.summary, notes=(*played.summary.notes, HOSTILE), first_failure=HOSTILE)
    return Report(title=HOSTILE, workload=workload, summary=summary, context={"server": HOSTILE})


@pytest.mark.parametrize(("scheme", "width"), [("light", 1200), ("dark", 375)])
def test_a_report_draws_its_charts_without_a_server(browser: Browser, tmp_path: Path, scheme: str, width: int) -> None:
    report = a_report()
    file = tmp_path / "report.html"
    file.write_text(report_html(report, chart_library=REPOSITORY / "static" / "vendor" / "chart.umd.js"))
    context = browser.new_context(
        viewport={"width": width, "height": 800}, color_scheme="dark" if scheme == "dark" else "light", offline=True
    )
    console = Console(context.new_page())
    console.watch()
    asked: list[str] = []
    console.page.on("request", lambda request: asked.append(request.url))
    try:
        console.page.goto(file.as_uri())
        plots = plots_of(report.summary, slo=report.workload.classes[0].slo)
        titles = [canvas.get_attribute("aria-label") for canvas in console.page.locator("canvas").all()]
        assert titles == [plot["title"] for plot in plots]
        assert len(titles) >= 4
        for canvas in console.page.locator("canvas").all():
            assert canvas.evaluate(_NUM_PIXELS) > 1000
        assert console.page.locator("h1").inner_text() == HOSTILE
        assert console.page.locator("img").count() == 0
        assert console.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert console.accessibility_problems() == []
        assert asked == [file.as_uri()]
        assert console.complaints == []
    finally:
        context.close()
