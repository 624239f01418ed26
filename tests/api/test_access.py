"""Which key opens which path, and that no key is ever told."""

from __future__ import annotations

import logging

import httpx
import pytest
from asgiref.sync import sync_to_async

from serving.admission.keys import KeyText, make_key
from serving.admission.services import create_key
from tests.api.envelope import error_of

PROTECTED = [
    ("POST", "/v1/completions"),
    ("POST", "/v1/chat/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/tiny"),
    ("GET", "/ops/v1/pools"),
    ("GET", "/ops/v1/pools/default/tunables"),
    ("PATCH", "/ops/v1/pools/default/tunables"),
    ("GET", "/ops/v1/pools/default/tunables/versions"),
    ("POST", "/ops/v1/pools/default/tunables/rollback"),
    ("GET", "/ops/v1/pools/default/snapshot"),
]
OPEN = {"/healthz", "/readyz"}


async def test_list_of_protected_paths_is_complete(client: httpx.AsyncClient) -> None:
    schema = (await client.get("/openapi.json")).json()
    documented = {
        (method.upper(), path.replace("{pool}", "default").replace("{model}", "tiny"))
        for path, methods in schema["paths"].items()
        for method in methods
        if path not in OPEN
    }
    assert documented == set(PROTECTED)


@pytest.mark.parametrize(("method", "path"), PROTECTED)
async def test_without_a_valid_key_nothing_opens(
    client: httpx.AsyncClient, key: KeyText, caplog: pytest.LogCaptureFixture, method: str, path: str
) -> None:
    caplog.set_level(logging.DEBUG)
    stranger = make_key()
    for header in (
        "",
        "Bearer ",
        "Bearer x",
        f"Bearer {stranger.text}",
        f"Bearer {key.text[:-1]}",
        f"Basic {key.text}",
    ):
        response = await client.request(method, path, headers={"Authorization": header})
        assert error_of(response, status=401)["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"
        assert stranger.text not in response.text
    response = await client.request(method, f"{path}?key={key.text}", headers={"Authorization": ""})
    error_of(response, status=401)
    del client.headers["Authorization"]
    error_of(await client.request(method, path), status=401)
    ours = [record.getMessage() for record in caplog.records if not record.name.startswith(("httpx", "httpcore"))]
    assert not any(stranger.text in line or key.text in line for line in ours)


@pytest.mark.parametrize(
    ("scope", "opens"),
    [
        ("generate", {"/v1/completions", "/v1/chat/completions", "/v1/models", "/v1/models/tiny"}),
        ("observe", {path for method, path in PROTECTED if method == "GET"}),
        ("operate", {path for _, path in PROTECTED} - {"/v1/completions", "/v1/chat/completions"}),
        ("batch", set()),
        ("admin", set()),
    ],
)
async def test_each_scope_opens_its_own_paths(client: httpx.AsyncClient, scope: str, opens: set[str]) -> None:
    key = await sync_to_async(create_key)("tests", scopes=[scope])
    for method, path in PROTECTED:
        response = await client.request(method, path, headers={"Authorization": f"Bearer {key.text}"})
        if path in opens and (scope != "observe" or method == "GET"):
            assert response.status_code not in {401, 403}
        else:
            assert error_of(response, status=403)["code"] == "permission_denied"
