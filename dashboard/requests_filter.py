"""What the address of the requests' list asks for, and the addresses of other views of it. Pure functions."""

from __future__ import annotations

import dataclasses
import datetime
import math
import re
from collections.abc import Collection, Mapping
from typing import cast, get_args

from dashboard.query_filter import Reader, moment, one_of, query_of, read_query, text_up_to
from serving.contracts.errors import InvalidValue
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
_NAMES = {"key": "key_prefix", "q": "text", **_BOUNDS}
_USUAL = {"last": USUAL_WINDOW, "sort": USUAL_SORT}
_PLACES = ("after", "before")
_KEY = re.compile(r"^(?:fp-)?([0-9a-f]{12})(?:-…?)?$")
_LONGEST_MS = 86_400_000.0


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
        return query_of(typed, usual=_USUAL)


def read_asked(query: Mapping[str, str], *, now: datetime.datetime, also: Collection[str] = ()) -> Asked:
    """What a query asks for; beside the fields it may say what is `also` in the address of a page. Nothing is raised:
    what cannot be is in `errors`, by field."""
    found = read_query(query, _READERS, usual=_USUAL, also=(*_PLACES, *also))
    values = {_NAMES.get(name, name): value for name, value in found.values.items()}
    sort = cast("RequestSort", values.pop("sort", USUAL_SORT))
    window = values.pop("last", None)
    if found.errors:
        return Asked(typed=found.typed, filter=RequestFilter(), sort=sort, errors=found.errors)
    if window is not None and not (values.get("since") or values.get("until")):
        values["since"] = now - window
    return Asked(
        typed=found.typed,
        filter=RequestFilter(**values),
        sort=sort,
        after=query.get("after") or None,
        before=query.get("before") or None,
    )


def _window(name: str, text: str) -> datetime.timedelta | None:
    return WINDOWS[one_of(WINDOWS)(name, text)][1]


def _key(name: str, text: str) -> str:
    found = _KEY.match(text)
    if found is None:
        raise InvalidValue(name, text, "the public part of a key, as fp-0123456789ab")
    return found[1]


def _seconds(name: str, text: str) -> float:
    """Of a text in milliseconds."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number <= _LONGEST_MS:
        raise InvalidValue(name, text, f"a number of milliseconds from 0 to {_LONGEST_MS:.0f}")
    return number / 1000


_READERS: Mapping[str, Reader] = {
    "last": _window,
    "since": moment,
    "until": moment,
    **dict.fromkeys(_TEXTS, text_up_to(LONGEST_TEXT)),
    "key": _key,
    **dict.fromkeys(_BOUNDS, _seconds),
    "sort": one_of(get_args(RequestSort)),
}
