"""The Lab's front page: the tuning process of seven steps, and doing again what no longer holds."""

from __future__ import annotations

import dataclasses
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe
from redis import Redis

from dashboard.lab.front_presenters import StepRow, present_steps, url_of
from dashboard.pages import PoolHeading, heading_of, only, read_pools, render_page
from dashboard.permissions import may_experiment, may_view_lab
from dashboard.services import services_of
from dashboard.signing import acting
from dashboard.threads import in_thread
from serving.contracts.actors import Author
from serving.contracts.errors import DomainError
from serving.lab.fingerprints import in_words
from serving.lab.steps.evidence import Ref
from serving.lab.steps.judging import judge_steps
from serving.lab.steps.selectors import read_evidence
from serving.lab.steps.services import order_again, read_ref


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FrontPage:
    """What `front.html` shows; without a pool there are no steps. `engines` is on what would be measured now, empty
    where no engine is known to live."""

    page: str = "lab"
    lab_page: str = "front"
    pools: tuple[str, ...] = ()
    pool: PoolHeading | None = None
    steps: tuple[StepRow, ...] = ()
    num_done: int = 0
    num_stale: int = 0
    engines: tuple[tuple[str, str], ...] = ()


@require_safe
@only(may_view_lab)
async def front(request: HttpRequest) -> HttpResponseBase:
    """The steps of the pool that the query names as `pool`, or else of the one that commands mean."""
    user, redis = await request.auser(), services_of(request).blocking_redis
    page = await in_thread(_read, request.GET.get("pool"), user, redis)
    return await render_page(request, "dashboard/lab/front.html", page)


@require_POST
@only(may_experiment)
async def again(request: HttpRequest) -> HttpResponseBase:
    """Order each `result` of the form again with its plan: all or none."""
    author = acting(request, (await request.auser()).get_username())
    try:
        made = await in_thread(_order, request.POST.getlist("result"), author)
    except DomainError as error:
        messages.error(request, f"Nothing was ordered: {error.message}.")
        return redirect(_front_of(request.POST.get("pool", "")))
    messages.success(request, f"Ordered: {', '.join(ref.words for ref in made)}. One at a time plays on a pool.")
    return redirect(url_of(made[0]) if len(made) == 1 else _front_of(request.POST.get("pool", "")))


def _read(name: str | None, user: Any, redis: Redis) -> FrontPage:
    pools, pool = read_pools(name)
    if pool is None:
        return FrontPage()
    known = read_evidence(pool.name, redis=redis)
    steps = judge_steps(known)
    may_order = pool.unconfigured_since is None and may_experiment(user)
    return FrontPage(
        pools=pools,
        pool=heading_of(pool),
        steps=present_steps(steps, pool.name, may_experiment=may_order),
        num_done=sum(each.state == "done" for each in steps),
        num_stale=sum(each.state == "stale" for each in steps),
        engines=in_words(known.now),
    )


def _order(results: list[str], author: Author) -> list[Ref]:
    return order_again([read_ref(each) for each in results], author=author)


def _front_of(pool: str) -> str:
    front_url = reverse("dashboard:lab")
    return f"{front_url}?{urlencode({'pool': pool})}" if pool else front_url
