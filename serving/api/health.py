"""`GET /healthz`: the process answers. `GET /readyz`: it can serve a request now."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import msgspec
from django.http import HttpRequest, HttpResponse
from redis.exceptions import RedisError

from serving.api.context import ApiServices, services_of
from serving.api.errors import problem_of
from serving.contracts.errors import Unavailable

_PING_SECONDS = 1.0


async def check_health(request: HttpRequest) -> HttpResponse:
    """Whether the process answers at all."""
    return _json({"status": "ok"}, status=200)


async def check_readiness(request: HttpRequest) -> HttpResponse:
    """Whether a request would be served now; 503 with the reasons otherwise."""
    reasons = await _reasons_against(services_of(request))
    if not reasons:
        return _json({"status": "ready", "reasons": []}, status=200)
    problem = problem_of(Unavailable("not ready: " + "; ".join(reasons), retry_after_seconds=1))
    body = {"status": "not ready", "reasons": reasons, "error": msgspec.to_builtins(problem.error)}
    return _json(body, status=problem.status, headers=dict(problem.headers))


async def _reasons_against(services: ApiServices) -> list[str]:
    reasons = ["the server is shutting down"] if services.drain.active else []
    if not await _answers(services):
        reasons.append("Redis cannot be reached")
    pools = services.gateway.pools()
    if not any(view.has_engines for view in pools):
        reasons.append("no engine is ready (pools: " + ", ".join(view.name for view in pools) + ")")
    return reasons


async def _answers(services: ApiServices) -> bool:
    try:
        async with asyncio.timeout(_PING_SECONDS):
            return bool(await cast(Any, services.redis.ping()))
    except (RedisError, OSError, TimeoutError):
        return False


def _json(body: dict[str, Any], *, status: int, headers: dict[str, str] | None = None) -> HttpResponse:
    return HttpResponse(
        msgspec.json.encode(body), status=status, content_type="application/json", headers=headers or {}
    )
