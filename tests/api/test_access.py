"""No path is open by oversight."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from django.urls import URLPattern, URLResolver, get_resolver

OPEN = {"/healthz", "/readyz", "/docs", "/openapi.json", "/", "/console", "/console/login/", "/console/logout/"}
"""What anyone may see: whether the server is well, how to talk to it, and where to sign in and out."""


def every_path(resolver: URLResolver, prefix: str = "/") -> Iterator[str]:
    for pattern in resolver.url_patterns:
        path = prefix + re.sub(r"<[^>]+>", "x", str(pattern.pattern))
        if isinstance(pattern, URLPattern):
            yield path
        else:
            yield from every_path(pattern, path)


PATHS = sorted(set(every_path(get_resolver())))


def test_the_walk_finds_the_paths_that_matter() -> None:
    assert {"/v1/completions", "/v1/chat/completions", "/ops/v1/pools", "/console/", "/healthz"} <= set(PATHS)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"])
async def test_every_path_but_a_few_asks_who_is_there(client: httpx.AsyncClient, path: str, method: str) -> None:
    client.headers.pop("Authorization", None)
    response = await client.request(method, path)
    if path in OPEN:
        assert response.status_code != 500
        return
    is_login = response.status_code == 302 and "/console/login/" in response.headers["location"]
    assert response.status_code in {401, 403, 404, 405} or is_login, (method, path, response.status_code)
