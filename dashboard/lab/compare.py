"""The page that sets runs side by side."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Final

import msgspec
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_safe

from dashboard.lab.compare_presenters import ComparePanel, comparison_json, present_comparison
from dashboard.pages import only, render_page, whole_number
from dashboard.permissions import may_view_lab
from dashboard.threads import in_thread
from serving.contracts.errors import InvalidValue, Unavailable
from serving.lab.comparing_elsewhere import compare_elsewhere
from serving.lab.runs.comparing import packed_sides, sides_of

_TURN: Final = asyncio.Lock()
"""One comparison at a time: each has a process of its own, and a processor to itself."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ComparePage:
    """What `compare.html` shows: a comparison, or why there is none. `query` is what asks for it, without a `?`."""

    page: str = "lab"
    lab_page: str = "runs"
    found: ComparePanel | None = None
    problem: str = ""
    query: str = ""


@require_safe
@only(may_view_lab)
async def compare(request: HttpRequest) -> HttpResponseBase:
    """The runs that `runs` names, a number each, as two sides; with `format=json` as JSON (400 with an error where they
    cannot be compared, 503 where nothing came of it)."""
    is_json = request.GET.get("format") == "json"
    texts = request.GET.getlist("runs")
    try:
        sides = await in_thread(sides_of, _numbers(texts))
        first, second = await in_thread(packed_sides, sides)
        async with _TURN:
            comparison = await in_thread(compare_elsewhere, first, second)
    except (InvalidValue, Unavailable) as error:
        status = 400 if isinstance(error, InvalidValue) else 503
        if is_json:
            content = {"error": {"code": error.code, "message": error.message, "param": error.param}}
            return HttpResponse(msgspec.json.encode(content), content_type="application/json", status=status)
        problem = ComparePage(problem=error.message)
        return await render_page(request, "dashboard/lab/compare.html", problem, status=status)
    if is_json:
        return HttpResponse(comparison_json(sides, comparison), content_type="application/json")
    query = "&".join(f"runs={run.id}" for run in (*sides.first, *sides.second))
    page = ComparePage(found=await in_thread(present_comparison, sides, comparison), query=query)
    return await render_page(request, "dashboard/lab/compare.html", page)


def _numbers(texts: list[str]) -> list[int]:
    found = []
    for text in texts:
        number = whole_number(text)
        if number is None:
            raise InvalidValue("runs", text[:40], "numbers of runs")
        found.append(number)
    return found
