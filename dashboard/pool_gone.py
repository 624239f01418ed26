"""A pool that is no longer configured: what is left of it to read, in place of the pages where it was steered."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse

from dashboard.pages import PoolHeading, render_page
from dashboard.threads import in_thread
from dashboard.tuning_effect import INTERVALS, milliseconds
from dashboard.tuning_presenters import HistoryRow
from dashboard.tuning_reading import read_history
from serving.telemetry.history_selectors import Measured, measured_between
from serving.telemetry.rollups import RESOLUTIONS
from serving.tuning.selectors import find_pool

_LOOK = datetime.timedelta(hours=24)
_LAST_STRETCH = datetime.timedelta(seconds=RESOLUTIONS[-1])
"""In its last stretch a pool was left out: what is told of that is told up to there, and nothing follows it."""
_NUM_VERSIONS = 6


@dataclasses.dataclass(frozen=True, slots=True)
class LastFigure:
    """Percentiles of an interval over the last day that the pool was configured."""

    title: str
    samples: str
    p50: str
    p95: str
    p99: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class GonePage:
    """What `pool_gone.html` shows, in place of the page whose word `page` is. `figures` are none where nothing is
    kept; `rows` are the last versions of the tunables."""

    page: str
    pool: PoolHeading
    pools: tuple[str, ...]
    figures: tuple[LastFigure, ...]
    rows: tuple[HistoryRow, ...]
    newest: int
    has_older: bool
    is_lively: bool = False
    may_steer: bool = False


async def render_pool_page(request: HttpRequest, template: str, page: Any, *, status: int = 200) -> HttpResponse:
    """As `render_page`, for a page about its `pool`; of a pool that is no longer configured, what is left of it to read
    is shown instead."""
    if page.pool is None or page.pool.unconfigured_since is None:
        return await render_page(request, template, page, status=status)
    return await render_page(request, "dashboard/pool_gone.html", await in_thread(_read, page), status=status)


def present_figures(measured: Measured | None) -> tuple[LastFigure, ...]:
    """A line an interval."""
    if measured is None:
        return ()
    summaries = ((title, getattr(measured.intervals, name)) for name, title in INTERVALS)
    return tuple(
        LastFigure(title, f"{one.count:,}", milliseconds(one.p50), milliseconds(one.p95), milliseconds(one.p99))
        for title, one in summaries
    )


def _read(page: Any) -> GonePage:
    heading: PoolHeading = page.pool
    until = heading.unconfigured_since
    assert until is not None, "the pool is left out"
    history = read_history(find_pool(heading.name), limit=_NUM_VERSIONS)
    return GonePage(
        page=page.page,
        pool=heading,
        pools=getattr(page, "pools", ()),
        figures=present_figures(measured_between(heading.name, until - _LOOK, until + _LAST_STRETCH)),
        rows=history.rows,
        newest=history.newest,
        has_older=history.has_older,
    )
