"""What all pages about tenants share: who may open them, how they are headed, and how they are rendered."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from redis import Redis

from dashboard.permissions import User, may_administer, may_view_tenants
from dashboard.services import services_of
from dashboard.signing import acting
from dashboard.threads import in_thread
from serving.contracts.actors import Author
from serving.contracts.errors import KeyNotFound, TenantNotFound

View = Callable[..., Coroutine[Any, Any, HttpResponseBase]]
_LARGEST_NUMBER = 2**31 - 1


@dataclasses.dataclass(frozen=True, slots=True)
class TenantHeading:
    """Which tenant a page is about."""

    id: int
    name: str
    enabled: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Actor:
    """Who changes something, and the Redis in which every door is told of it."""

    author: Author
    redis: Redis


def for_readers(view: View) -> View:
    """Only for those who may see tenants and, where the view is posted to, change them."""
    return _guarded(view, lambda request: may_administer if request.method == "POST" else may_view_tenants)


def for_administrators(view: View) -> View:
    """Only for those who may change tenants."""
    return _guarded(view, lambda _: may_administer)


async def actor_of(request: HttpRequest) -> Actor:
    """Who makes a request."""
    name = (await request.auser()).get_username()
    return Actor(acting(request, name), services_of(request).blocking_redis)


async def render_page(request: HttpRequest, template: str, page: Any, *, status: int = 200) -> HttpResponse:
    """The fields of a page, a dataclass, in the template."""
    context: Mapping[str, Any] = {field.name: getattr(page, field.name) for field in dataclasses.fields(page)}
    response: HttpResponse = await in_thread(render, request, template, context, status=status)
    return response


def heading_of(tenant: Any) -> TenantHeading:
    """The heading of a tenant's pages."""
    return TenantHeading(tenant.pk, tenant.name, tenant.enabled)


def whole_number(text: str | None) -> int | None:
    """A number from a form or a query, at most the largest that a version can have; None for what is none."""
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 10:
        return None
    return min(int(text), _LARGEST_NUMBER)


def _guarded(view: View, rule: Callable[[HttpRequest], Callable[[User], bool]]) -> View:
    @login_required
    @wraps(view)
    async def checked(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        if not await in_thread(rule(request), await request.auser()):
            raise PermissionDenied
        try:
            return await view(request, **kwargs)
        except (TenantNotFound, KeyNotFound) as error:
            raise Http404(error.message) from None

    return checked
