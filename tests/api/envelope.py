"""Reading an error as the API promises it."""

from __future__ import annotations

from typing import Any

import httpx
from django.conf import settings

INSIDES = (
    "Traceback",
    "serving",
    ".py",
    str(settings.BASE_DIR),
    "/tmp",
    "Error(",
    "pydantic",
    "msgspec",
    "ninja",
    "django",
)


def error_of(response: httpx.Response, *, status: int) -> dict[str, Any]:
    """The error of a response with this status; fails unless the one envelope tells it, and nothing of our insides."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("application/json")
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str)
    assert error["message"]
    assert error["type"].endswith("_error")
    assert error["param"] is None or isinstance(error["param"], str)
    assert not any(word in response.text for word in INSIDES)
    return error
