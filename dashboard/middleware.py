"""What surrounds the console's pages: what browsers may load and do there, and what they show where there is none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from django.core.exceptions import DisallowedHost
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import render
from django.utils.cache import patch_vary_headers
from django.utils.decorators import async_only_middleware
from django.utils.text import compress_string

from dashboard.threads import in_thread

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


_CHARSET = "utf-8"
_COMPRESSED = ("text/html", "application/json")
_LEAST_BYTES = 1024
# As Django's own middleware does against guessing at what is in a page by its compressed length (BREACH).
_MOST_RANDOM_BYTES = 100
_PROBLEMS = {
    403: (
        "Not allowed",
        "Your account may not do this. If it may, the form was out of date, as after signing in again: go back to the"
        " page, reload it and try once more.",
    ),
    404: (
        "Nothing here",
        "There is no such page; its pool, tenant, key or request may be gone. A request that has just ended is in the"
        " log within a few seconds.",
    ),
    405: ("Not like this", "This address belongs to a button, not to a page."),
}


@async_only_middleware
def utf8_forms(
    get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]],
) -> Callable[[HttpRequest], Awaitable[HttpResponseBase]]:
    """Refuse forms in encodings that no browser sends from our pages: some spell text that nothing can store."""

    async def middleware(request: HttpRequest) -> HttpResponseBase:
        charset = (request.content_params or {}).get("charset", _CHARSET)
        if request.path.startswith("/console/") and charset.lower() != _CHARSET:
            return HttpResponse(f"charset must be {_CHARSET}: {charset!r}", status=400, content_type="text/plain")
        return await get_response(request)

    return middleware


@async_only_middleware
def users_in_threads(
    get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]],
) -> Callable[[HttpRequest], Awaitable[HttpResponseBase]]:
    """Read the session's user on a thread that gives its database connection back.

    Django's own `auser` keeps one until the response has ended. While a view waits for another on a thread of ours, a
    few requests at once would hold all that the pool has, and none would go on.
    """

    async def middleware(request: HttpRequest) -> HttpResponseBase:
        async def auser() -> Any:
            await in_thread(lambda: request.user.is_authenticated)
            return request.user

        request.auser = auser
        return await get_response(request)

    return middleware


@async_only_middleware
def problem_pages(
    get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]],
) -> Callable[[HttpRequest], Awaitable[HttpResponseBase]]:
    """Put Django's bare pages for refusals under /console/ into the console's frame."""

    async def middleware(request: HttpRequest) -> HttpResponseBase:
        response = await get_response(request)
        known = _PROBLEMS.get(response.status_code)
        is_page = response.headers.get("Content-Type", "").startswith("text/html")
        if known is None or not is_page or not request.path.startswith("/console/"):
            return response
        title, text = known
        page = await in_thread(
            render, request, "dashboard/problem.html", {"title": title, "text": text}, status=response.status_code
        )
        if "Allow" in response.headers:
            page.headers["Allow"] = response.headers["Allow"]
        return page

    return middleware


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


@async_only_middleware
def compressed(
    get_response: Callable[[HttpRequest], Awaitable[HttpResponseBase]],
) -> Callable[[HttpRequest], Awaitable[HttpResponseBase]]:
    """Compress the console's pages for browsers that take it. Streams are left as they are: they come piece by piece.

    Django's own would hold a thread for each response, the API's answers among them, and hold back what is streamed.
    """

    async def middleware(request: HttpRequest) -> HttpResponseBase:
        response = await get_response(request)
        if not _may_compress(request, response):
            return response
        assert isinstance(response, HttpResponse)
        patch_vary_headers(response, ("Accept-Encoding",))
        if "gzip" in request.headers.get("Accept-Encoding", ""):
            response.content = await in_thread(compress_string, response.content, max_random_bytes=_MOST_RANDOM_BYTES)
            response.headers["Content-Encoding"] = "gzip"
            response.headers["Content-Length"] = str(len(response.content))
        return response

    return middleware


def _may_compress(request: HttpRequest, response: HttpResponseBase) -> bool:
    if not request.path.startswith("/console/") or not isinstance(response, HttpResponse):
        return False
    is_kind = response.headers.get("Content-Type", "").startswith(_COMPRESSED)
    return is_kind and len(response.content) >= _LEAST_BYTES and not response.has_header("Content-Encoding")


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
