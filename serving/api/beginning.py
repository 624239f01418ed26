"""From a client's HTTP request to one that runs: what is the same for every endpoint that asks a model."""

from __future__ import annotations

import functools
from typing import Any

from django.http import HttpRequest

from serving.api.context import principal_of, scope_of, services_of
from serving.api.entering import NewRequest
from serving.api.finding import route_finder
from serving.api.routing import Route
from serving.api.starting import Started

_LONGEST_TRACEPARENT = 512

POOL_HEADER = "x-footplate-pool"
"""Tells which pool ran a request."""


async def begin(request: HttpRequest, *, route: Route, model: str, named: str | None, **asked: Any) -> Started:
    """Start what a client asked for: `asked` are those fields of `NewRequest` that do not follow from its key and its
    HTTP request. Raises what the starter does; what it holds is given up with the HTTP request at the latest."""
    services, scope, principal = services_of(request), scope_of(request), principal_of(request)
    new_request = NewRequest(
        request_id=scope.request_id,
        route=route,
        route_for=route_finder(request, model, named=named),
        tenant=f"tenant:{principal.tenant_id}",  # a name may be another's tomorrow
        arrived_at=scope.arrived_at,
        account=principal.account,
        read_account=functools.partial(services.authenticator.account_of, principal.key_prefix),
        tell=scope.rate_limits.set,
        traceparent=request.headers.get("traceparent", "")[:_LONGEST_TRACEPARENT],
        **asked,
    )
    scope.passage.reached_door = True
    return await services.starter.start(new_request, cleanup=scope.cleanup)
