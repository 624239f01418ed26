"""What the address of the audit asks for, and the addresses of other views of it. Pure functions."""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Mapping
from typing import get_args
from urllib.parse import urlencode

from serving.audit.actions import ACTIONS, SUBJECT_KINDS
from serving.audit.selectors import Filter, Place
from serving.contracts.actors import ActorKind
from serving.contracts.texts import is_storable, without_secrets

LONGEST_TEXT = 200
ACTOR_KINDS: tuple[str, ...] = get_args(ActorKind)
CHOICES: Mapping[str, tuple[str, ...]] = {
    "action": ACTIONS,
    "actor_kind": ACTOR_KINDS,
    "subject_kind": SUBJECT_KINDS,
}
"""What each field admits that is chosen from a list."""

FIELDS = ("since", "until", "actor", "action", "reason", "actor_kind", "subject_kind", "subject", "pool", "tenant")
_REST = ("request_id",)
_MOMENTS = ("since", "until")
_PLACE = re.compile(r"([0-9]{1,17})-([0-9]{1,19})")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)
_LAST_YEAR = 2200
_MOST_IN_WORDS = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an address asks for. `typed` is each field's text as it was given, `errors` what is wrong with which; then
    `filter` asks for everything, and nothing is to be shown. `older` and `newer` are the places that a page begins
    behind or ends in front of."""

    typed: Mapping[str, str]
    filter: Filter
    older: Place | None
    newer: Place | None
    errors: Mapping[str, str]

    @property
    def num_folded_away(self) -> int:
        """How many fields beyond the first row ask for something."""
        return sum(bool(self.typed[name]) for name in (*FIELDS[5:], *_REST))

    @property
    def asks_for_less(self) -> bool:
        """Whether anything bounds what is shown."""
        return any(self.typed.values())

    def query(self, **changes: str) -> str:
        """The query of a view that is asked for otherwise, its `?` included; a place is kept only where it is said."""
        kept = {name: text for name, text in {**self.typed, **changes}.items() if text}
        return f"?{urlencode(kept)}" if kept else ""


def read(given: Mapping[str, str]) -> Asked:
    """What the query of an address asks for; a place that is none is left out."""
    typed = {name: given.get(name, "").strip() for name in (*FIELDS, *_REST)}
    errors = {name: error for name, text in typed.items() if text and (error := _fault_of(name, text))}
    values = {name: _read_moment(text) if name in _MOMENTS else text for name, text in typed.items() if text}
    since, until = (values.get(name) for name in _MOMENTS)
    if isinstance(since, datetime.datetime) and isinstance(until, datetime.datetime) and since >= until:
        errors["until"] = f"until must be after since, {typed['since']}, not {typed['until']}"
    return Asked(
        typed={name: without_secrets(text)[:LONGEST_TEXT] if name in errors else text for name, text in typed.items()},
        filter=Filter() if errors else Filter(**values),  # type: ignore[arg-type]
        older=_read_place(given.get("older", "")),
        newer=_read_place(given.get("newer", "")),
        errors=errors,
    )


def place_in_words(place: Place) -> str:
    """A place as addresses bear it."""
    return f"{(place.at - _EPOCH) // _MICROSECOND}-{place.pk}"


def _fault_of(name: str, text: str) -> str:
    """What is wrong with a field's text; empty where nothing is."""
    shown = repr(without_secrets(text)[:LONGEST_TEXT])
    if name in _MOMENTS:
        is_moment = _read_moment(text) is not None
        return "" if is_moment else f"{name} must be a moment of UTC such as 2030-01-31T12:00, not {shown}"
    if name in CHOICES:
        known = CHOICES[name]
        bounds = ", ".join(known) if len(known) <= _MOST_IN_WORDS else f"the {len(known)} that the list offers"
        return "" if text in known else f"{name} must be one of {bounds}, not {shown}"
    if is_storable(text, longest=LONGEST_TEXT) and text.isprintable():
        return ""
    return f"{name} must be a text of at most {LONGEST_TEXT} printable characters, without API keys"


def _read_moment(text: str) -> datetime.datetime | None:
    try:
        moment = datetime.datetime.fromisoformat(text)
        moment = moment.replace(tzinfo=datetime.UTC) if moment.tzinfo is None else moment.astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return None
    return moment if _EPOCH.year <= moment.year <= _LAST_YEAR else None


def _read_place(text: str) -> Place | None:
    found = _PLACE.fullmatch(text)
    if found is None:
        return None
    at = int(found[1]) * _MICROSECOND
    return Place(at=_EPOCH + min(at, datetime.timedelta(days=80_000)), pk=int(found[2]))
