"""A run's requests, or its course, as CSV."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from serving.lab.summaries import Moment, Outcome
from serving.tables import csv_pieces


def requests_csv(outcomes: Iterable[Outcome]) -> str:
    """A line a request, in the order in which they ended, under the names of `Outcome`'s fields."""
    return "".join(csv_pieces(Outcome.__struct_fields__, map(msgspec.structs.astuple, outcomes)))


def moments_csv(moments: Iterable[Moment]) -> str:
    """A line a stretch of time, under the names of `Moment`'s fields."""
    return "".join(csv_pieces(Moment.__struct_fields__, map(msgspec.structs.astuple, moments)))
