"""Telling an engine to drain, to resume or to restart: asked once more, with a reason, then done and written down."""

from __future__ import annotations

import dataclasses
from typing import Any

from django.contrib import messages
from django.http import Http404, HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods
from redis.exceptions import RedisError

from dashboard.fleet_pages import read_all, silent
from dashboard.fleet_presenters import is_last_taker, possible_acts
from dashboard.pages import for_steerers, render_page
from dashboard.services import services_of
from dashboard.signing import acting
from dashboard.threads import in_thread
from serving.contracts.errors import EngineNotFound, InvalidValue, NothingChanges, Unavailable
from serving.contracts.ids import EngineId
from serving.contracts.messages import EngineSnapshot
from serving.contracts.texts import without_secrets
from serving.telemetry.engine_acts import POSSIBLE, EngineAct, tell_engine
from serving.telemetry.fleet import PoolFleet

_TOLD = {
    "drain": "is told to drain: it takes nothing new, ends what it has begun, and stays.",
    "resume": "is told to take work again.",
    "restart": "is told to restart: it ends what it can, hands the rest to others, and leaves.",
}


@require_http_methods(["GET", "HEAD", "POST"])
@for_steerers
async def act(request: HttpRequest, engine_id: str, act: str) -> HttpResponseBase:
    """Ask whether the engine shall `drain`, `resume` or `restart` and, posted to, tell it so."""
    if act not in POSSIBLE:
        raise Http404("an engine can be told to drain, resume or restart")
    try:
        found = await _find(request, engine_id)
        if found is None:
            return _lead_back(request, f"Engine {engine_id[:100]} is gone: nothing was done.")
        question = _question(*found, act)
        if request.method != "POST":
            return await render_page(request, "dashboard/fleet_act.html", question)
        return await _obey(request, question)
    except (Unavailable, RedisError, OSError) as error:
        problem = error.message if isinstance(error, Unavailable) else silent(error).message
        return _lead_back(request, f"{problem}: nothing was done.")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ActPage:
    """What `fleet_act.html` shows. `is_last` says that the pool would stand still; `problem` is what was refused, in
    `error` where it is the reason's fault. `can_be_done` is False where the engine's state does not allow it."""

    page: str = "fleet"
    act: EngineAct
    engine_id: str
    name: str
    state: str
    pool_name: str
    num_held: int
    is_last: bool
    can_be_done: bool
    reason: str = ""
    error: str = ""
    problem: str = ""


async def _find(request: HttpRequest, engine_id: str) -> tuple[PoolFleet, EngineSnapshot] | None:
    fleet, _ = await read_all(request)
    for pool in fleet.pools:
        for engine in pool.engines:
            if engine.snapshot.engine_id == engine_id:
                return pool, engine.snapshot
    return None


def _question(pool: PoolFleet, snapshot: EngineSnapshot, act: EngineAct) -> ActPage:
    return ActPage(
        act=act,
        engine_id=snapshot.engine_id,
        name=snapshot.name,
        state=snapshot.standing,
        pool_name=snapshot.pool,
        num_held=snapshot.num_running + snapshot.num_waiting,
        is_last=act != "resume" and is_last_taker(pool, snapshot),
        can_be_done=act in possible_acts(snapshot),
    )


async def _obey(request: HttpRequest, question: ActPage) -> HttpResponseBase:
    reason = request.POST.get("reason", "")
    kept: dict[str, Any] = {"reason": without_secrets(reason)}
    if question.is_last and request.POST.get("knows_last") != "1":
        kept["problem"] = "Nothing was done yet: by now no other engine of the pool takes work"
        return await _ask_again(request, dataclasses.replace(question, **kept), status=409)
    try:
        await in_thread(
            tell_engine,
            EngineId(question.engine_id),
            question.act,
            actor=acting(request, (await request.auser()).get_username()),
            reason=reason,
            redis=services_of(request).blocking_redis,
        )
    except InvalidValue as error:
        return await _ask_again(request, dataclasses.replace(question, **kept, error=error.message), status=400)
    except NothingChanges as error:
        kept |= {"problem": error.message, "can_be_done": False}
        return await _ask_again(request, dataclasses.replace(question, **kept), status=409)
    except EngineNotFound as error:
        return _lead_back(request, f"{error.message}; nothing was done.")
    messages.success(request, f"Engine {question.name} {_TOLD[question.act]}")
    return redirect("dashboard:fleet")


async def _ask_again(request: HttpRequest, question: ActPage, *, status: int) -> HttpResponseBase:
    return await render_page(request, "dashboard/fleet_act.html", question, status=status)


def _lead_back(request: HttpRequest, text: str) -> HttpResponseBase:
    messages.warning(request, text)
    return redirect("dashboard:fleet")
