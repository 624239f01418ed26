"""The form that orders a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

from django.contrib import messages
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.http import require_http_methods

from dashboard.pages import only, read_pools, render_page
from dashboard.permissions import may_experiment
from dashboard.signing import acting
from dashboard.threads import in_thread
from serving.contracts.actors import Author
from serving.contracts.errors import DomainError, InvalidValue
from serving.lab.playing.target import Prompts, Target
from serving.lab.runs.services import order_run
from serving.lab.workloads.changing import changed
from serving.lab.workloads.store import find_workload, workload_names

_FIELDS = ("workload", "pool", "url", "model", "prompts", "title", "repeats", "seed", "rate_scale", "duration")
_PROMPTS = ("tokens", "text", "chat")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewRunPage:
    """What `run_new.html` shows: what was typed, and what is wrong with it."""

    page: str = "lab"
    lab_page: str = "runs"
    typed: Mapping[str, str]
    workloads: tuple[str, ...]
    pools: tuple[str, ...]
    error: str = ""
    wrong_field: str = ""


@require_http_methods(["GET", "HEAD", "POST"])
@only(may_experiment)
async def new(request: HttpRequest) -> HttpResponseBase:
    """The form; what is sent with it is ordered. The key of a foreign server is never shown again."""
    source = request.POST if request.method == "POST" else request.GET
    typed = {name: source.get(name, "")[:500] for name in _FIELDS}
    if request.method != "POST":
        return await render_page(request, "dashboard/lab/run_new.html", await in_thread(_page, typed))
    user = await request.auser()
    try:
        runs = await in_thread(_order, typed, request.POST.get("key", ""), acting(request, user.get_username()))
    except DomainError as error:
        page = await in_thread(_page, typed, error=error.message, wrong_field=error.param or "")
        return await render_page(request, "dashboard/lab/run_new.html", page, status=400)
    messages.success(
        request, "The run waits for its turn." if len(runs) == 1 else f"{len(runs)} runs wait for their turn."
    )
    return redirect("dashboard:lab_run", run_id=runs[0].pk)


def _order(typed: Mapping[str, str], key: str, author: Author) -> list[Any]:
    workload = changed(
        find_workload(typed["workload"]),
        duration_seconds=_number("duration", typed["duration"]),
        rate_scale=_number("rate_scale", typed["rate_scale"]) or 1.0,
        seed=_integer("seed", typed["seed"]),
    )
    foreign = None
    if typed["url"]:
        if typed["prompts"] not in _PROMPTS:
            raise InvalidValue("prompts", typed["prompts"], "one of " + ", ".join(_PROMPTS))
        prompts = cast(Prompts, typed["prompts"])
        foreign = Target(
            url=typed["url"], model=typed["model"], key=key, prompts=prompts, ignore_eos=prompts == "tokens"
        )
    return order_run(
        workload,
        author=author,
        pool="" if foreign is not None else typed["pool"],
        foreign=foreign,
        title=typed["title"],
        repeats=_integer("repeats", typed["repeats"]) or 1,
    )


def _page(typed: Mapping[str, str], *, error: str = "", wrong_field: str = "") -> NewRunPage:
    names, pool = read_pools(None)
    filled = {"repeats": "1", "rate_scale": "1", "prompts": "chat", "pool": "" if pool is None else str(pool.name)}
    return NewRunPage(
        typed={name: value or filled.get(name, "") for name, value in typed.items()},
        workloads=tuple(workload_names()),
        pools=tuple(names),
        error=error,
        wrong_field=wrong_field,
    )


def _number(name: str, text: str) -> float | None:
    try:
        return float(text) if text.strip() else None
    except ValueError:
        raise InvalidValue(name, text[:40], "a number") from None


def _integer(name: str, text: str) -> int | None:
    try:
        return int(text) if text.strip() else None
    except ValueError:
        raise InvalidValue(name, text[:40], "a whole number") from None
