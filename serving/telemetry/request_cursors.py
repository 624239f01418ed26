"""Where a page of requests ended: a short text that is handed out and comes back. Pure functions."""

from __future__ import annotations

import base64
import binascii
import datetime
import json
import math
from typing import Any

from serving.contracts.errors import InvalidValue
from serving.telemetry.request_rows import RequestSort

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_LARGEST_ID = 2**63 - 1
_LONGEST = 200
_LATEST_MICROSECONDS = 200_000_000_000_000_000  # far in the future, and a moment that Python knows

CursorPlace = tuple[Any, int]
"""The sorted value of a page's last row (a moment where it is sorted by arrival), and its primary key."""


def write_cursor(sort: RequestSort, place: CursorPlace) -> str:
    """The text of a place in a list sorted so."""
    value, pk = place
    if isinstance(value, datetime.datetime):
        value = (value - _EPOCH) // datetime.timedelta(microseconds=1)
    return base64.urlsafe_b64encode(json.dumps([sort, value, pk]).encode()).decode().rstrip("=")


def read_cursor(text: str, sort: RequestSort) -> CursorPlace:
    """The place that a text names; raises `InvalidValue` for one that was never handed out for this sorting."""
    try:
        padded = text.encode("ascii") + b"=" * (-len(text) % 4)
        if len(padded) > _LONGEST:
            raise ValueError("longer than any")
        named, value, pk = json.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
        if named != sort or type(pk) is not int or not 0 <= pk <= _LARGEST_ID:
            raise ValueError("of another list")
        return _value_of(value, sort), pk
    except (ValueError, TypeError, RecursionError, binascii.Error) as error:
        raise InvalidValue("after", text, "what the page before gave for this sorting") from error


def _value_of(value: Any, sort: RequestSort) -> Any:
    if sort in ("newest", "oldest"):
        if type(value) is not int or not 0 <= value <= _LATEST_MICROSECONDS:
            raise ValueError("no moment")
        return _EPOCH + datetime.timedelta(microseconds=value)
    if type(value) not in (int, float) or not math.isfinite(value) or abs(value) > _LARGEST_ID:
        raise ValueError("no number")
    return value
