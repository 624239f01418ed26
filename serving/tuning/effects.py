"""When a version's effect is looked for. Pure."""

from __future__ import annotations

import dataclasses
import datetime
from typing import Protocol

LOOK = datetime.timedelta(minutes=10)
"""How far before and after a version its effect is looked for."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """Where a version's effect is looked for: from `since` to `stored_at`, and from `at`, when all engines were to run
    it, to `until`. `next_number` is the version that cuts the second short, `is_open` says that it is not over."""

    since: datetime.datetime
    stored_at: datetime.datetime
    at: datetime.datetime
    until: datetime.datetime
    next_number: int | None
    is_open: bool


class Dated(Protocol):
    """A version, as far as it bounds the effect of its neighbours."""

    number: int
    created_at: datetime.datetime


def stretches_of(version: Dated, *, older: Dated | None, newer: Dated | None, now: datetime.datetime) -> Stretches:
    """The ten minutes before and after a version, cut where a neighbour was stored: its effect is its own. The time for
    which one engine alone ran it is of neither."""
    stored_at, at = version.created_at, _taken_to_all_at(version)
    since = stored_at - LOOK if older is None else max(stored_at - LOOK, _taken_to_all_at(older))
    is_cut = newer is not None and newer.created_at < at + LOOK
    until = newer.created_at if newer is not None and is_cut else min(at + LOOK, now)
    return Stretches(
        since=since,
        stored_at=stored_at,
        at=at,
        until=max(until, at),
        next_number=newer.number if newer is not None and is_cut else None,
        is_open=not is_cut and now < at + LOOK,
    )


def ran_on_all(version: Dated) -> bool:
    """Whether all engines were to run it, so that it has an effect at all: not while one of them alone tries it, nor
    where it was taken back from there."""
    canary = getattr(version, "canary", None)
    return canary is None or canary.state == "promoted"


def _taken_to_all_at(version: Dated) -> datetime.datetime:
    canary = getattr(version, "canary", None)
    ended_at: datetime.datetime | None = None if canary is None or canary.state != "promoted" else canary.ended_at
    return ended_at or version.created_at
