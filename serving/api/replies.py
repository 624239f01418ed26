"""Answers of the steering API: JSON of plain values."""

from __future__ import annotations

from typing import Any

import msgspec
from django.http import HttpRequest, HttpResponse

from serving.contracts.errors import InvalidValue


def json_reply(body: Any, *, status: int = 200) -> HttpResponse:
    """`body` in JSON, for nobody on the way to keep; moments and days in the form of ISO 8601."""
    return HttpResponse(
        msgspec.json.encode(body),
        status=status,
        content_type="application/json",
        headers={"Cache-Control": "no-store"},
    )


def number_in_query(request: HttpRequest, name: str, *, default: int, low: int, high: int) -> int:
    """An integer of the query; raises `InvalidValue` for what is none or out of bounds."""
    text = request.GET.get(name)
    if text is None:
        return default
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(high))
    if not is_number or not low <= int(text) <= high:
        raise InvalidValue(name, text, f"an integer from {low} to {high}")
    return int(text)
