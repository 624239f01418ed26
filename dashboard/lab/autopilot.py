"""The pages about autopilots: one a pool, its terms, and what it did."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_POST, require_safe

from dashboard.pages import only, render_page
from dashboard.permissions import may_steer, may_view_lab
from dashboard.signing import acting
from dashboard.threads import in_thread
from serving.contracts.actors import Author
from serving.contracts.errors import DomainError, InvalidValue
from serving.contracts.tunables import describe
from serving.lab.autopilot import services
from serving.lab.autopilot.levers import LEVERS
from serving.lab.autopilot.selectors import AutopilotView, find_autopilot, list_autopilots
from serving.lab.autopilot.terms import OBJECTIVES, Lever, Objective, Terms

for_viewers = only(may_view_lab)

_SECONDS = {
    "missed_seconds": "An objective is missed for this long before anything is moved",
    "judged_seconds": "A move is judged after this long",
    "retry_seconds": "A move that did not help is not tried again for this long",
    "calm_seconds": "After this long with room, the latest move is taken back",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveField:
    """An objective in the form; its bound is empty where it is not held."""

    name: str
    title: str
    bound: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LeverField:
    """A lever in the form, and whether it may be moved."""

    name: str
    title: str
    is_used: bool
    low: str
    high: str
    bounds: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AutopilotsPage:
    """What `autopilots.html` shows."""

    page: str = "lab"
    lab_page: str = "autopilot"
    autopilots: tuple[AutopilotView, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AutopilotPage:
    """What `autopilot.html` shows."""

    page: str = "lab"
    lab_page: str = "autopilot"
    autopilot: AutopilotView
    objectives: tuple[ObjectiveField, ...]
    levers: tuple[LeverField, ...]
    seconds: tuple[tuple[str, str, str], ...]
    may_steer: bool


@require_safe
@for_viewers
async def autopilots(request: HttpRequest) -> HttpResponseBase:
    """All pools' autopilots."""
    found = await in_thread(list_autopilots)
    return await render_page(request, "dashboard/lab/autopilots.html", AutopilotsPage(autopilots=tuple(found)))


@require_safe
@for_viewers
async def autopilot(request: HttpRequest, pool: str) -> HttpResponseBase:
    """One pool's autopilot."""
    page = await in_thread(_read, pool, await request.auser())
    return await render_page(request, "dashboard/lab/autopilot.html", page)


@require_POST
@for_viewers
async def act(request: HttpRequest, pool: str, act: str) -> HttpResponseBase:
    """Switch it `on` with the terms that were sent, or `off`, or let it `resume`."""
    user = await request.auser()
    if not await in_thread(may_steer, user):
        raise PermissionDenied
    author = acting(request, user.get_username())
    try:
        told = await in_thread(_act, pool, act, request.POST.dict(), author)
    except DomainError as error:
        messages.error(request, f"Nothing was changed: {error.message}.")
    else:
        messages.success(request, told)
    return redirect("dashboard:lab_autopilot", pool=pool)


def _act(pool: str, act: str, typed: Mapping[str, str], author: Author) -> str:
    reason = typed.get("reason", "")
    if act == "on":
        services.switch_on(pool, _terms(typed), reason=reason, author=author)
        return "The autopilot is on. A change by hand pauses it."
    if act == "off":
        services.switch_off(pool, reason=reason, author=author)
        return "The autopilot is off. What it moved stays."
    if act == "resume":
        services.resume(pool, reason=reason, author=author)
        return "The autopilot goes on, from the values as they are."
    raise Http404


def _terms(typed: Mapping[str, str]) -> Terms:
    objectives = [
        Objective(name, _number(f"objective-{name}", text))
        for name in OBJECTIVES
        if (text := typed.get(f"objective-{name}", "").strip())
    ]
    levers = [
        Lever(
            name,
            _number(f"{name}-low", typed.get(f"{name}-low", "")),
            _number(f"{name}-high", typed.get(f"{name}-high", "")),
        )
        for name in LEVERS
        if typed.get(f"lever-{name}")
    ]
    seconds: dict[str, Any] = {name: _number(name, typed[name]) for name in _SECONDS if typed.get(name)}
    return Terms(objectives=tuple(objectives), levers=tuple(levers), **seconds)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidValue(name, text[:40], "a number") from None


def _plain(value: float) -> str:
    """A number as people type it."""
    return str(int(value)) if float(value).is_integer() else str(value)


def _read(pool: str, user: Any) -> AutopilotPage:
    view = find_autopilot(pool)
    bounds = {spec.name: spec.bounds for spec in describe()}
    levers = []
    for name, title in LEVERS.items():
        lever = view.terms.lever(name)
        low, high = ("", "") if lever is None else (_plain(lever.low), _plain(lever.high))
        levers.append(
            LeverField(name=name, title=title, is_used=lever is not None, low=low, high=high, bounds=bounds[name])
        )
    return AutopilotPage(
        autopilot=view,
        objectives=tuple(
            ObjectiveField(
                name=name, title=title, bound="" if (bound := view.terms.bound_of(name)) is None else _plain(bound)
            )
            for name, title in OBJECTIVES.items()
        ),
        levers=tuple(levers),
        seconds=tuple((name, words, _plain(getattr(view.terms, name))) for name, words in _SECONDS.items()),
        may_steer=may_steer(user),
    )
