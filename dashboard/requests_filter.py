"""What the address of the requests' list asks for, and the addresses of other views of it. Pure functions."""

from __future__ import annotations

import dataclasses
import datetime
import math
import re
from collections.abc import Callable, Mapping
from typing import Any, cast, get_args
from urllib.parse import urlencode

from serving.contracts.errors import InvalidValue
from serving.contracts.texts import is_storable, without_secrets
from serving.telemetry.request_rows import RequestFilter, RequestSort

WINDOWS: Mapping[str, tuple[str, datetime.timedelta | None]] = {
    "15m": ("15 minutes", datetime.timedelta(minutes=15)),
    "1h": ("hour", datetime.timedelta(hours=1)),
    "24h": ("24 hours", datetime.timedelta(hours=24)),
    "7d": ("7 days", datetime.timedelta(days=7)),
    "all": ("All that is kept", None),
}
"""What `last` may say, how it is called, and how far it reaches back."""

USUAL_WINDOW = "24h"
USUAL_SORT: RequestSort = "newest"
LONGEST_TEXT = 100

_TEXTS = ("tenant", "key", "pool", "model", "endpoint", "outcome", "code", "q")
_BOUNDS = {
    "min_queue_ms": "min_queue_seconds",
    "min_ttft_ms": "min_ttft_seconds",
    "min_itl_ms": "min_itl_seconds",
    "min_e2e_ms": "min_e2e_seconds",
}
_FIELDS = ("last", "since", "until", *_TEXTS, *_BOUNDS, "sort")
_NAMES = {"key": "key_prefix", "q": "text"}
_USUAL = {"last": USUAL_WINDOW, "sort": USUAL_SORT}
_KEY = re.compile(r"^(?:fp-)?([0-9a-f]{12})(?:-…?)?$")
_LONGEST_MS = 86_400_000.0
_FIRST, _LAST = (datetime.datetime(year, 1, 1, tzinfo=datetime.UTC) for year in (2000, 2100))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an address asks for. `typed` is each field's text as it was given, `errors` what is wrong with which; then
    `filter` is empty. `after` and `before` are the places that a page begins behind or ends in front of."""

    typed: Mapping[str, str]
    filter: RequestFilter
    sort: RequestSort
    after: str | None = None
    before: str | None = None
    errors: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def window(self) -> str:
        """What `last` says; empty where a beginning or an end is given instead."""
        return "" if self.typed["since"] or self.typed["until"] else self.typed["last"]

    @property
    def num_beyond_the_usual(self) -> int:
        """How many fields of those that are folded away ask for something."""
        return sum(bool(self.typed[name]) for name in ("since", "until", "pool", "model", "endpoint", *_BOUNDS))

    @property
    def asks_for_less(self) -> bool:
        """Whether anything but the time bounds what is shown."""
        return any(self.typed[name] for name in (*_TEXTS, *_BOUNDS))

    def query(self, **changes: str) -> str:
        """The query of a view that is asked for otherwise, its `?` included; it begins anew unless `after` or `before`
        is said."""
        typed = {**self.typed, **changes}
        if changes.get("last"):
            typed |= {"since": "", "until": ""}
        kept = {name: text for name, text in typed.items() if text and text != _USUAL.get(name)}
        return f"?{urlencode(kept)}" if kept else ""


def read_asked(query: Mapping[str, str], *, now: datetime.datetime) -> Asked:
    """What a query asks for. Nothing is raised: what cannot be is in `errors`, by field."""
    typed = {name: query.get(name, "").strip() for name in _FIELDS}
    typed = {name: text or _USUAL.get(name, "") for name, text in typed.items()}
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name in _FIELDS:
        try:
            values |= _read(name, typed[name])
        except InvalidValue as error:
            errors[name] = error.message
    shown = {name: without_secrets(text) if "\0" not in text else "" for name, text in typed.items()}
    sort = cast("RequestSort", values.pop("sort", USUAL_SORT))
    window = values.pop("last", None)
    if values.get("since") and values.get("until") and values["since"] >= values["until"]:
        errors["until"] = "until must be later than since"
    if errors:
        return Asked(typed=shown, filter=RequestFilter(), sort=sort, errors=errors)
    if window is not None and not (values.get("since") or values.get("until")):
        values["since"] = now - window
    return Asked(
        typed=shown,
        filter=RequestFilter(**values),
        sort=sort,
        after=query.get("after") or None,
        before=query.get("before") or None,
    )


def _read(name: str, text: str) -> dict[str, Any]:
    """The filter's values of one field. Raises `InvalidValue`."""
    if not text:
        return {}
    if name == "last":
        return {"last": _one_of("last", text, WINDOWS)[1]}
    if name == "sort":
        _one_of("sort", text, dict.fromkeys(get_args(RequestSort)))
        return {"sort": text}
    if name in ("since", "until"):
        return {name: _moment(name, text)}
    if name in _BOUNDS:
        return {_BOUNDS[name]: _milliseconds(name, text) / 1000}
    if not is_storable(text, longest=LONGEST_TEXT):
        raise InvalidValue(name, text, f"a text of at most {LONGEST_TEXT} characters, without NUL and API keys")
    return {_NAMES.get(name, name): _key(text) if name == "key" else text}


def _one_of(name: str, text: str, choices: Mapping[str, Any]) -> Any:
    if text not in choices:
        raise InvalidValue(name, text, "one of " + ", ".join(choices))
    return choices[text]


def _key(text: str) -> str:
    found = _KEY.match(text)
    if found is None:
        raise InvalidValue("key", text, "the public part of a key, as fp-0123456789ab")
    return found[1]


def _moment(name: str, text: str) -> datetime.datetime:
    bounds = "a moment of UTC from 2000 to 2099, as 2030-01-31T12:00"
    moment: datetime.datetime | None = _tried(datetime.datetime.fromisoformat, text)
    if moment is None:
        raise InvalidValue(name, text, bounds)
    try:
        in_utc = moment.replace(tzinfo=datetime.UTC) if moment.tzinfo is None else moment.astimezone(datetime.UTC)
    except OverflowError:
        raise InvalidValue(name, text, bounds) from None
    if not _FIRST <= in_utc < _LAST:
        raise InvalidValue(name, text, bounds)
    return in_utc


def _milliseconds(name: str, text: str) -> float:
    number: float | None = _tried(float, text)
    if number is None or not math.isfinite(number) or not 0 <= number <= _LONGEST_MS:
        raise InvalidValue(name, text, f"a number of milliseconds from 0 to {_LONGEST_MS:.0f}")
    return number


def _tried(read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except ValueError:
        return None
