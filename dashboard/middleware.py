"""What browsers may load and do on the console's pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import async_only_middleware

_POLICY = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self'",
    "font-src 'self'",
    "connect-src 'self'{websockets}",
    "form-action 'self'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
    "object-src 'none'",
    "require-trusted-types-for 'script'",
    "trusted-types 'none'",
)


@async_only_middleware
def content_security_policy(
    get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]],
) -> Callable[[HttpRequest], Awaitable[HttpResponseBase]]:
    """Send a policy with every answer under /console/: nothing inline, nothing from elsewhere, no caches."""

    async def middleware(request: HttpRequest) -> HttpResponseBase:
        response = await get_response(request)
        if request.path.startswith("/console/"):
            response.headers["Content-Security-Policy"] = policy_for(request)
            response.headers["Cache-Control"] = "no-store"
        return response

    return middleware


def policy_for(request: HttpRequest) -> str:
    """The policy of a page: what it loads and where it connects to is on its own host."""
    return "; ".join(_POLICY).format(websockets=_websockets_of(request))


def _websockets_of(request: HttpRequest) -> str:
    # To older browsers (Safari before 15.4) 'self' means HTTP alone.
    try:
        host = request.get_host()
    except DisallowedHost:
        return ""
    return f" {'wss' if request.is_secure() else 'ws'}://{host}"
