"""What all pages share: who may open them, and how they are rendered."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render

from dashboard.permissions import User, may_steer, may_watch
from dashboard.threads import in_thread
from serving.contracts.errors import DomainError, KeyNotFound, PoolNotFound, RuleNotFound, TenantNotFound
from serving.tuning import selectors

View = Callable[..., Coroutine[Any, Any, HttpResponseBase]]
May = Callable[[User], bool]

_MISSING: tuple[type[DomainError], ...] = (KeyNotFound, PoolNotFound, RuleNotFound, TenantNotFound)
_LARGEST_NUMBER = 2**31 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class PoolHeading:
    """Which pool a page is about."""

    name: str
    model: str


def only(may: May, *, to_post: May | None = None) -> Callable[[View], View]:
    """A view for those whom `may` lets and, where it is posted to, `to_post`. Who is not signed in is sent to sign in;
    who may not gets 403, and 404 who asks for what is not there."""

    def guard(view: View) -> View:
        @login_required
        @wraps(view)
        async def checked(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
            rule = to_post if request.method == "POST" and to_post is not None else may
            if not await in_thread(rule, await request.auser()):
                raise PermissionDenied
            try:
                return await view(request, **kwargs)
            except _MISSING as error:
                raise Http404(error.message) from None

        return checked

    return guard


for_watchers = only(may_watch)
for_steerers = only(may_steer)


def read_pools(name: str | None) -> tuple[tuple[str, ...], Any]:
    """The names of all pools, and the one of that name; where none is named, the one that commands mean, or else the
    first by name (None: there is no pool). Blocking. Raises `PoolNotFound`."""
    pools = {str(pool.name): pool for pool in selectors.pools()}
    if name is not None and name not in pools:
        raise PoolNotFound(f"there is no pool named {name[:100]!r}")
    if name is not None:
        return tuple(pools), pools[name]
    return tuple(pools), pools.get(settings.FOOTPLATE_POOL) or next(iter(pools.values()), None)


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
