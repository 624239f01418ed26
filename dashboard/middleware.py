"""What browsers may load and do on the console's pages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from django.http import HttpRequest, HttpResponseBase
from django.utils.decorators import async_only_middleware

POLICY = "; ".join(
    [
        "default-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "object-src 'none'",
    ]
)


@async_only_middleware
def content_security_policy(
    get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]],
) -> Callable[[HttpRequest], Awaitable[HttpResponseBase]]:
    """Send a policy with every answer under /console/: nothing inline, nothing from elsewhere, no caches."""

    async def middleware(request: HttpRequest) -> HttpResponseBase:
        response = await get_response(request)
        if request.path.startswith("/console/"):
            response.headers["Content-Security-Policy"] = POLICY
            response.headers["Cache-Control"] = "no-store"
        return response

    return middleware
