"""What the address of a list asks for, field by field: what the lists with filters share. Pure functions."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Collection, Mapping
from typing import Any
from urllib.parse import urlencode

from serving.contracts.errors import InvalidValue
from serving.contracts.texts import is_storable, without_secrets

Reader = Callable[[str, str], Any]
"""What a field's text (never empty) stands for, given the field's name and it. Raises `InvalidValue`."""

UNKNOWN = "filter"
"""Where `errors` has fields that there are not: a misspelt filter must not look like one that lets all through."""

_MOMENT = "a moment of UTC from 2000 to 2099, as 2030-01-31T12:00"
_FIRST, _LAST = (datetime.datetime(year, 1, 1, tzinfo=datetime.UTC) for year in (2000, 2100))
_LONGEST_SHOWN = 200
_MOST_IN_WORDS = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """`typed` is each field's text as it was given or else is usual, fit to be shown; `values` what those stand for
    that are not empty, and `errors` what is wrong with which."""

    typed: Mapping[str, str]
    values: Mapping[str, Any]
    errors: Mapping[str, str]


def read_query(
    query: Mapping[str, str],
    readers: Mapping[str, Reader],
    *,
    usual: Mapping[str, str] | None = None,
    also: Collection[str] = (),
) -> Read:
    """What a query says of the fields that have `readers`; beside them it may say what is `also` in an address. Nothing
    is raised. `since` and `until` must come in this order, where a list has them."""
    typed = {name: query.get(name, "").strip() or (usual or {}).get(name, "") for name in readers}
    values: dict[str, Any] = {}
    errors: dict[str, str] = {}
    for name, reader in readers.items():
        try:
            if typed[name]:
                values[name] = reader(name, typed[name])
        except InvalidValue as error:
            errors[name] = error.message
    if values.get("since") and values.get("until") and values["since"] >= values["until"]:
        errors["until"] = "until must be later than since"
    if unknown := sorted(set(query) - {*readers, *also}):
        errors[UNKNOWN] = f"there is no filter {_fit_to_show(unknown[0])!r}: there are {', '.join(readers)}"
    return Read(typed={name: _fit_to_show(text) for name, text in typed.items()}, values=values, errors=errors)


def query_of(typed: Mapping[str, str], *, usual: Mapping[str, str] | None = None) -> str:
    """The query of an address that asks for this, its `?` included; what is empty or usual is left out."""
    kept = {name: text for name, text in typed.items() if text and text != (usual or {}).get(name)}
    return f"?{urlencode(kept)}" if kept else ""


def moment(name: str, text: str) -> datetime.datetime:
    """A moment in UTC; one without a zone is taken as of it."""
    try:
        read = datetime.datetime.fromisoformat(text)
        in_utc = read.replace(tzinfo=datetime.UTC) if read.tzinfo is None else read.astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        raise InvalidValue(name, text, _MOMENT) from None
    if not _FIRST <= in_utc < _LAST:
        raise InvalidValue(name, text, _MOMENT)
    return in_utc


def one_of(choices: Collection[str]) -> Reader:
    """A reader of one of these words."""
    few = len(choices) <= _MOST_IN_WORDS
    bounds = f"one of {', '.join(choices)}" if few else f"one of the {len(choices)} that the list offers"

    def read(name: str, text: str) -> str:
        if text not in choices:
            raise InvalidValue(name, text, bounds)
        return text

    return read


def text_up_to(longest: int) -> Reader:
    """A reader of a text of at most so many characters that can be looked for: whatever a name may hold, as the joiners
    of emoji and marks of direction, which are no printable characters."""

    def read(name: str, text: str) -> str:
        if not is_storable(text, longest=longest):
            raise InvalidValue(name, text, f"a text of at most {longest} characters, without NUL and API keys")
        return text

    return read


def _fit_to_show(text: str) -> str:
    return without_secrets(text.replace("\0", ""))[:_LONGEST_SHOWN]
