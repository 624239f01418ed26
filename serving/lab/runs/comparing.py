"""Which runs stand side by side, and what comes of it. Blocking."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import msgspec

from serving.contracts.errors import InvalidValue
from serving.lab.comparing import MOST_RUNS
from serving.lab.comparing_elsewhere import PackedRun, run_figures
from serving.lab.fingerprints import decode_fingerprint, differences
from serving.lab.runs.selectors import RunView, packed_outcomes_of, runs_of
from serving.lab.workloads.codec import decode_workload
from serving.lab.workloads.words import arrivals_in_words
from serving.lab.workloads.workload import Workload

MOST_CHOSEN: Final = 2 * MOST_RUNS
_AMOUNTS: Final = {
    "duration_seconds": "duration, s",
    "num_requests": "requests",
    "warm_up_seconds": "warm-up, s",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sides:
    """Two groups of runs, each under one setting, and in words what differs between them."""

    first: tuple[RunView, ...]
    second: tuple[RunView, ...]
    differing: tuple[str, ...]


def sides_of(run_ids: Collection[int]) -> Sides:
    """The runs of these numbers as two sides: those under the setting of the oldest, and those under the other. Two
    runs under one setting are a side each.

    Raises `InvalidValue` in words for runs that cannot be compared: too few or too many, not there, not over, without
    figures, of other workloads, or under more settings than two.
    """
    runs = _usable(run_ids)
    groups: dict[bytes, list[RunView]] = {}
    for run in runs:
        groups.setdefault(_setting_of(run), []).append(run)
    if len(groups) == 1 and len(runs) == 2:
        return _sides(runs[:1], runs[1:])
    if len(groups) != 2:
        how = "one setting" if len(groups) == 1 else f"{len(groups)} settings ({_told(groups.values())})"
        raise InvalidValue("runs", f"{len(runs)} under {how}", "two, or runs of two settings, each once or repeated")
    first, second = groups.values()
    return _sides(first, second)


def packed_sides(sides: Sides) -> tuple[list[PackedRun], list[PackedRun]]:
    """Both sides with their requests, to be compared. Raises `InvalidValue` where one was deleted meanwhile."""
    return list(_packed(sides.first)), list(_packed(sides.second))


def _sides(first: Sequence[RunView], second: Sequence[RunView]) -> Sides:
    if max(len(first), len(second)) > MOST_RUNS:
        raise InvalidValue("runs", f"{len(first)} and {len(second)}", f"at most {MOST_RUNS} under each setting")
    workloads = [decode_workload(side[0].workload) for side in (first, second)]
    if workloads[0].name != workloads[1].name or workloads[0].classes != workloads[1].classes:
        names = " and ".join(
            name + (" (its classes differ)" if workloads[0].name == workloads[1].name else "")
            for name in dict.fromkeys(workload.name for workload in workloads)
        )
        raise InvalidValue("runs", names, "of one workload: figures of two say nothing of a setting")
    return Sides(
        first=tuple(first),
        second=tuple(second),
        differing=tuple(_differing(first[0], second[0], workloads[0], workloads[1])),
    )


def _usable(run_ids: Collection[int]) -> list[RunView]:
    numbers = sorted(set(run_ids))
    if not 2 <= len(numbers) <= MOST_CHOSEN:
        raise InvalidValue("runs", f"{len(numbers)} of them", f"2 to {MOST_CHOSEN}")
    found = runs_of(numbers)
    known = {run.id for run in found}
    if missing := [number for number in numbers if number not in known]:
        raise InvalidValue("runs", f"run {missing[0]}", "runs that are there: it was deleted, or never was")
    for run in found:
        if not run.is_over:
            raise InvalidValue("runs", f"run {run.id}, which is {run.state}", "over")
        if run.summary is None or not run.has_outcomes:
            raise InvalidValue("runs", f"run {run.id}, which {run.state} without", "runs with figures")
    return found


def _setting_of(run: RunView) -> bytes:
    """All that a repeat has in common with its first."""
    target = {name: run.target.get(name) for name in ("url", "model", "prompts", "ignore_eos")}
    content = {
        "workload": {name: value for name, value in run.workload.items() if name != "seed"},
        "pool": run.pool,
        "target": {**target, "url": "" if run.pool else target["url"]},
        "tunables": run.tunables,
        "fingerprint": run.fingerprint,
    }
    return msgspec.json.encode(content, order="sorted")


def _differing(one: RunView, other: RunView, before: Workload, after: Workload) -> Iterator[str]:
    if one.pool != other.pool:
        yield f"pool: {one.pool or 'none'} → {other.pool or 'none'}"
    for name in ("model", "prompts") if one.pool or other.pool else ("url", "model", "prompts"):
        yield from _change(name, one.target.get(name), other.target.get(name))
    for name in sorted({*(one.tunables or {}), *(other.tunables or {})}):
        yield from _change(name, (one.tunables or {}).get(name), (other.tunables or {}).get(name))
    yield from differences(decode_fingerprint(one.fingerprint), decode_fingerprint(other.fingerprint))
    yield from _change("arrivals", arrivals_in_words(before.arrivals), arrivals_in_words(after.arrivals))
    for name, words in _AMOUNTS.items():
        yield from _change(words, getattr(before, name), getattr(after, name))


def _change(name: str, before: Any, after: Any) -> Iterator[str]:
    if before != after:
        yield f"{name}: {_shown(before)} → {_shown(after)}"


def _shown(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _told(groups: Collection[list[RunView]]) -> str:
    return "; ".join(", ".join(str(run.id) for run in group) for group in groups)


def _packed(runs: Sequence[RunView]) -> Iterator[PackedRun]:
    packed = packed_outcomes_of([run.id for run in runs])
    for run in runs:
        assert run.summary is not None, "only runs with figures are on a side"
        if run.id not in packed:
            raise InvalidValue("runs", f"run {run.id}", "runs that are there: it was deleted just now")
        yield PackedRun(
            packed=packed[run.id],
            measured_seconds=run.summary.measured_seconds,
            began_seconds=run.summary.warm_up_seconds,
            slos={each.name: each.slo for each in decode_workload(run.workload).classes},
            figures=run_figures(run.summary),
        )
