"""What all pages share: who may open them, and how they are rendered."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render

from dashboard.permissions import User, may_steer, may_watch
from dashboard.threads import in_thread
from dashboard.user_reading import UserNotFound, must_change_password
from serving.contracts.errors import (
    DomainError,
    KeyNotFound,
    PoolNotConfigured,
    PoolNotFound,
    RuleNotFound,
    TenantNotFound,
)
from serving.tuning import selectors

View = Callable[..., Coroutine[Any, Any, HttpResponseBase]]
May = Callable[[User], bool]

_MISSING: tuple[type[DomainError], ...] = (KeyNotFound, PoolNotFound, RuleNotFound, TenantNotFound, UserNotFound)
_LARGEST_NUMBER = 2**31 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class PoolHeading:
    """Which pool a page is about. `unconfigured_since` is None while the settings name it."""

    name: str
    model: str
    unconfigured_since: datetime.datetime | None = None


def heading_of(pool: Any) -> PoolHeading:
    """The heading of a stored pool."""
    return PoolHeading(pool.name, pool.model, pool.unconfigured_since)


def only(may: May, *, to_post: May | None = None, with_any_password: bool = False) -> Callable[[View], View]:
    """A view for those whom `may` lets and, where it is posted to, `to_post`. Who is not signed in is sent to sign in;
    who may not gets 403, 404 who asks for what is not there, and 409 who would act on a pool that is left out.
    Who has to choose a password first is sent to do so,
    except `with_any_password`."""

    def guard(view: View) -> View:
        @login_required
        @wraps(view)
        async def checked(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
            rule = to_post if request.method == "POST" and to_post is not None else may
            is_let, has_own_password = await in_thread(_judge, await request.auser(), rule)
            if not is_let:
                raise PermissionDenied
            if not (has_own_password or with_any_password):
                return redirect("dashboard:account")
            try:
                return await view(request, **kwargs)
            except PoolNotConfigured as error:
                problem = {"title": "Nothing was done", "text": f"{error.message[:1].upper()}{error.message[1:]}."}
                refused: HttpResponse = await in_thread(render, request, "dashboard/problem.html", problem, status=409)
                return refused
            except _MISSING as error:
                raise Http404(error.message) from None

        return checked

    return guard


for_watchers = only(may_watch)
for_steerers = only(may_steer)


def _judge(user: Any, may: May) -> tuple[bool, bool]:
    """Whether the user may, and whether the password is the user's own."""
    return may(user), not must_change_password(user)


def read_pools(name: str | None) -> tuple[tuple[str, ...], Any]:
    """The names of the pools to choose from, and the one of that name; where none is named, the one that commands mean,
    or else the first by name (None: there is no pool). A pool that is no longer configured is offered only where it is
    named. Blocking. Raises `PoolNotFound`."""
    pools = {str(pool.name): pool for pool in selectors.configured_pools()}
    if name is None:
        return tuple(pools), pools.get(settings.FOOTPLATE_POOL) or next(iter(pools.values()), None)
    if name not in pools:
        pools[name] = selectors.find_pool(name)
    return tuple(pools), pools[name]


def may_steer_pool(user: User, pool: Any) -> bool:
    """Whether the user may steer, and there is something to steer: the stored pool is configured. Blocking."""
    return pool.unconfigured_since is None and may_steer(user)


async def render_page(request: HttpRequest, template: str, page: Any, *, status: int = 200) -> HttpResponse:
    """The fields of a page, a dataclass, in the template."""
    context: Mapping[str, Any] = {field.name: getattr(page, field.name) for field in dataclasses.fields(page)}
    response: HttpResponse = await in_thread(render, request, template, context, status=status)
    return response


def whole_number(text: str | None) -> int | None:
    """A number from a form or a query, at most the largest that a version can have; None for what is none."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 10:
        return None
    return min(int(text), _LARGEST_NUMBER)
