"""Where a key's requests go."""

from __future__ import annotations

import functools
from collections.abc import Callable

from django.http import HttpRequest

from serving.admission.accounts import Account
from serving.api.context import ApiServices, principal_of, services_of
from serving.api.routing import Route, find_route
from serving.contracts.errors import DomainError


def route_finder(request: HttpRequest, model: str, *, named: str | None = None) -> Callable[[Account], Route]:
    """What tells where a request for `model` goes on an account; it raises what `find_route` does."""
    return functools.partial(_find, services=services_of(request), model=model, named=named)


def route_of(request: HttpRequest, model: str) -> Route:
    """Where this key's requests for `model` go; raises what `find_route` does."""
    return route_finder(request, model)(principal_of(request).account)


async def route_of_now(request: HttpRequest, model: str, *, named: str | None = None) -> Route:
    """The same, for a request that goes on to the door and bears the account that was known before: where that one may
    not, the account of now is asked."""
    find, principal = route_finder(request, model, named=named), principal_of(request)
    try:
        return find(principal.account)
    except DomainError:
        if principal.account.pools is None:
            raise
    return find(await services_of(request).authenticator.account_of(principal.key_prefix))


def _find(account: Account, *, services: ApiServices, model: str, named: str | None) -> Route:
    return find_route(services.gateway.pools(), model=model, allowed=account.pools, named=named)
