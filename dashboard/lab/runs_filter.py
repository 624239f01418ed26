"""What the address of the runs' list asks for, and the addresses of other views of it. Pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from dashboard.query_filter import Reader, one_of, query_of, read_query, text_up_to
from dashboard.requests_presenters import Option
from serving.lab.runs.selectors import STATES, RunChoices, RunFilter

ELSEWHERE: Final = ":other"
"""What `pool` says for runs against other servers; no pool is called so."""

_LONGEST_TEXT = 100


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AskedRuns:
    """What an address asks for. `typed` is each field's text as it was given, `errors` what is wrong with which; then
    `filter` is empty."""

    typed: Mapping[str, str]
    filter: RunFilter
    errors: Mapping[str, str]

    @property
    def is_filtered(self) -> bool:
        """Whether fewer than all are asked for."""
        return any(self.typed.values())

    def query(self, **changes: str) -> str:
        """The query of the same list asked for otherwise, its `?` included."""
        return query_of({**self.typed, **changes})


def read_asked_runs(query: Mapping[str, str]) -> AskedRuns:
    """What a query asks for; beside the fields it may say `before`. Nothing is raised: see `errors`."""
    found = read_query(query, _READERS, also=("before",))
    wanted = RunFilter() if found.errors else RunFilter(**found.values)
    return AskedRuns(typed=found.typed, filter=wanted, errors=found.errors)


def present_choices(asked: AskedRuns, known: RunChoices) -> dict[str, tuple[Option, ...]]:
    """The choices of each field; what was asked for is one of them, whether there is such a run or not."""
    pools = [(pool, pool) for pool in known.pools]
    if known.has_elsewhere:
        pools.append((ELSEWHERE, "Other servers"))
    return {
        "workload": _options([(name, name) for name in known.workloads], asked.typed["workload"]),
        "pool": _options(pools, asked.typed["pool"]),
        "state": _options([(state, state) for state in STATES], asked.typed["state"]),
    }


def _options(values: Sequence[tuple[str, str]], chosen: str) -> tuple[Option, ...]:
    known: Collection[str] = [value for value, _ in values]
    first = [(chosen, chosen)] if chosen and chosen not in known else []
    return tuple(Option(value, label, value == chosen) for value, label in [*first, *values])


def _pool(name: str, text: str) -> str:
    return "" if text == ELSEWHERE else _text(name, text)


_text = text_up_to(_LONGEST_TEXT)
_READERS: Final[Mapping[str, Reader]] = {"workload": _text, "pool": _pool, "state": one_of(STATES)}
