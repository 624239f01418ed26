"""A run's requests, or its course, as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

import msgspec

from serving.lab.summaries import Moment, Outcome

_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def requests_csv(outcomes: Iterable[Outcome]) -> str:
    """A line a request, in the order in which they ended, under the names of `Outcome`'s fields."""
    return _csv(Outcome.__struct_fields__, map(msgspec.structs.astuple, outcomes))


def moments_csv(moments: Iterable[Moment]) -> str:
    """A line a stretch of time, under the names of `Moment`'s fields."""
    return _csv(Moment.__struct_fields__, map(msgspec.structs.astuple, moments))


def _csv(names: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(names)
    writer.writerows([_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _cell(value: Any) -> Any:
    """What a spreadsheet would take for a formula is a text to it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
