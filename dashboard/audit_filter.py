"""What the address of the audit asks for, and the addresses of other views of it. Pure functions."""

from __future__ import annotations

import dataclasses
import datetime
import re
from collections.abc import Mapping
from typing import get_args

from dashboard.query_filter import Reader, moment, one_of, query_of, read_query, text_up_to
from serving.audit.actions import ACTIONS, SUBJECT_KINDS
from serving.audit.selectors import Filter, Place
from serving.contracts.actors import ActorKind

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
_PLACES = ("older", "newer")
_PLACE = re.compile(r"([0-9]{1,17})-([0-9]{1,19})")
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND = datetime.timedelta(microseconds=1)


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
        return query_of({**self.typed, **changes})


def read(given: Mapping[str, str]) -> Asked:
    """What the query of an address asks for; a place that is none is left out."""
    found = read_query(given, {name: _reader_of(name) for name in (*FIELDS, *_REST)}, also=_PLACES)
    return Asked(
        typed=found.typed,
        filter=Filter() if found.errors else Filter(**found.values),
        older=_read_place(given.get("older", "")),
        newer=_read_place(given.get("newer", "")),
        errors=found.errors,
    )


def place_in_words(place: Place) -> str:
    """A place as addresses bear it."""
    return f"{(place.at - _EPOCH) // _MICROSECOND}-{place.pk}"


def _reader_of(name: str) -> Reader:
    if name in _MOMENTS:
        return moment
    return one_of(CHOICES[name]) if name in CHOICES else text_up_to(LONGEST_TEXT)


def _read_place(text: str) -> Place | None:
    found = _PLACE.fullmatch(text)
    if found is None:
        return None
    at = int(found[1]) * _MICROSECOND
    return Place(at=_EPOCH + min(at, datetime.timedelta(days=80_000)), pk=int(found[2]))
