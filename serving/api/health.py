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
    """Whether requests would be served now; 503 with the reasons otherwise.

    A process that serves several pools is ready while one of them has an engine: the others are named in `reasons`.
    """
    services = services_of(request)
    missing = [view.name for view in services.gateway.pools() if not view.has_engines]
    reasons = [f"pool {name} has no engine that is ready" for name in missing]
    against = await _reasons_against(services)
    if not against and len(missing) < len(services.gateway.pools()):
        return _json({"status": "ready", "reasons": reasons}, status=200)
    problem = problem_of(Unavailable("not ready: " + "; ".join(against + reasons), retry_after_seconds=1))
    body = {"status": "not ready", "reasons": against + reasons, "error": msgspec.to_builtins(problem.error)}
    return _json(body, status=problem.status, headers=dict(problem.headers))


async def _reasons_against(services: ApiServices) -> list[str]:
    reasons = ["the server is shutting down"] if services.drain.active else []
    if not await _answers(services):
        reasons.append("Redis cannot be reached")
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
