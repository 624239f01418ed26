"""The API asked by a name of the inner network, over plain HTTP, as the Lab's container asks it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest


@pytest.mark.parametrize("is_behind_tls", [False, True])
async def test_the_api_serves_whoever_has_a_key_by_whatever_name_it_is_reached(
    client: httpx.AsyncClient, settings: Any, is_behind_tls: bool
) -> None:
    settings.ALLOWED_HOSTS = []
    settings.DEBUG = False
    settings.SECURE_SSL_REDIRECT = is_behind_tls
    body = {"model": "tiny", "prompt": [1, 2, 3], "max_tokens": 4}
    answer = await client.post("/v1/completions", json=body, headers={"Host": "web:8000"})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] == "Hello 0"
