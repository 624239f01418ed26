"""Tenants and keys for tests, made over REST."""

from __future__ import annotations

from typing import Any

import httpx

TENANTS = "/ops/v1/tenants"


async def new_tenant(client: httpx.AsyncClient, name: str = "acme", **body: Any) -> dict[str, Any]:
    response = await client.post(TENANTS, json={"name": name, **body})
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    return made


async def new_key(client: httpx.AsyncClient, tenant: dict[str, Any], **body: Any) -> dict[str, Any]:
    response = await client.post(f"{TENANTS}/{tenant['id']}/keys", json={"scopes": ["generate"], **body})
    assert response.status_code == 201, response.text
    made: dict[str, Any] = response.json()
    return made


async def get(client: httpx.AsyncClient, path: str) -> Any:
    response = await client.get(path)
    assert response.status_code == 200, response.text
    return response.json()


def problem(response: httpx.Response) -> tuple[int, str, str | None]:
    error = response.json()["error"]
    return response.status_code, error["code"], error["param"]


async def list_models(client: httpx.AsyncClient, key: str) -> httpx.Response:
    return await client.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
