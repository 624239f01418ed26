"""No path is open by oversight."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx
import pytest
from django.urls import URLPattern, URLResolver, get_resolver

from serving.admission.keys import SCOPES, make_key
from serving.admission.services import create_key, revoke_key
from serving.threads import in_thread
from tests.api.conftest import MODEL, ScriptedGateway, ScriptedServices

OPEN = {"/healthz", "/readyz", "/docs", "/openapi.json", "/", "/console"} | {
    f"/console/{name}" for name in ("login/", "logout/", "session.json")
}
"""What anyone may see: whether the server is well, how to talk to it, where to sign in and out, and whether one is."""

METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"]
OPENED_BY = {
    "/metrics": {"observe", "operate"},
    "/ops/v1/tenants": {"admin"},
    "/ops/v1/pools": {"observe", "operate"},
    "/v1/models": {"generate", "observe", "operate"},
}
"""Which scopes open what is below a path; everything else that a key opens takes `generate`."""

AT_THE_DOOR = {"/v1/completions", "/v1/chat/completions"}
"""Where a body that cannot be served is refused before the door finds out that the key was revoked a moment ago."""


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
    assert {"/ops/v1/tenants", "/ops/v1/tenants/x/keys/x/quotas/rollback", "/ops/v1/tenants/x/usage"} <= set(PATHS)


def asks_who_is_there(response: httpx.Response) -> bool:
    """Whether it was refused, or led to where one signs in."""
    is_login = response.status_code == 302 and "/console/login/" in response.headers["location"]
    return response.status_code in {401, 403, 404, 405} or is_login


@pytest.mark.parametrize("path", PATHS)
async def test_every_path_but_a_few_asks_who_is_there(client: httpx.AsyncClient, path: str) -> None:
    client.headers.pop("Authorization", None)
    for method in METHODS:
        response = await client.request(method, path)
        is_right = response.status_code != 500 if path in OPEN else asks_who_is_there(response)
        assert is_right, (method, path, response.status_code)


@pytest.mark.parametrize("path", sorted({*PATHS} - OPEN))
async def test_no_key_that_is_wrong_opens_any_path(client: httpx.AsyncClient, path: str) -> None:
    """C86: an unknown key is as good as none, whatever the method."""
    client.headers["Authorization"] = f"Bearer {make_key().text}"
    for method in METHODS:
        response = await client.request(method, path)
        assert asks_who_is_there(response), (method, path, response.status_code)


@pytest.mark.parametrize("path", sorted(path for path in {*PATHS} - OPEN if not path.startswith("/console")))
async def test_no_key_opens_a_path_that_is_not_for_its_scopes(client: httpx.AsyncClient, path: str) -> None:
    """C86: a key that is good for something else is told so, before anything of the request is looked at."""
    opening = next((scopes for prefix, scopes in OPENED_BY.items() if path.startswith(prefix)), {"generate"})
    key = await in_thread(create_key, "others", scopes=sorted({*SCOPES} - opening))
    client.headers["Authorization"] = f"Bearer {key.text}"
    statuses = {(await client.request(method, path)).status_code for method in METHODS}
    assert statuses <= {403, 405}
    assert 403 in statuses


async def test_no_path_is_open_to_a_key_that_was_revoked_after_it_was_used(
    client: httpx.AsyncClient, services: ScriptedServices, gateway: ScriptedGateway
) -> None:
    """C86: what a process remembers of a key opens nothing once the key is revoked."""
    key = await in_thread(create_key, "others", scopes=SCOPES)
    client.headers["Authorization"] = f"Bearer {key.text}"
    assert (await client.get("/v1/models")).status_code == 200
    principal = await services.authenticator.authenticate(f"Bearer {key.text}")
    await in_thread(revoke_key, principal.tenant_id, key.prefix, author="tests", redis=services.blocking_redis)
    for path in AT_THE_DOOR:
        text = {"prompt": "x"} if path == "/v1/completions" else {"messages": [{"role": "user", "content": "x"}]}
        response = await client.post(path, json={"model": MODEL, **text})
        assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
    assert gateway.generations == []
    for path in sorted({*PATHS} - OPEN - AT_THE_DOOR):
        for method in METHODS:
            response = await client.request(method, path)
            assert asks_who_is_there(response), (method, path, response.status_code)
