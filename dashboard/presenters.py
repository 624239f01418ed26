"""What a page shows, from what was read: pure functions, nothing that formats lives in a template."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from serving.contracts.messages import AnnouncedTunables
from serving.contracts.tunables import TunableSpec, describe

_GAUGES = {
    "num_engines": "Engines",
    "num_running": "Running",
    "num_waiting": "Waiting",
    "num_waiting_tokens": "Waiting, prompt tokens",
    "kv_blocks_used": "KV blocks in use",
    "kv_blocks_cached": "KV blocks cached",
    "kv_blocks_free": "KV blocks free",
    "kv_blocks_total": "KV blocks in all",
}
_INTERVALS = {
    "queue_time_seconds": "Queue time",
    "ttft_seconds": "Time to first token",
    "itl_seconds": "Between tokens",
    "e2e_seconds": "End to end",
}
_PERCENTILES = ("p50", "p90", "p95", "p99")
_NOTHING = "–"


class Version(Protocol):
    """A stored version of a pool's tunables."""

    number: int
    changes: dict[str, Any]
    reason: str
    author: str
    created_at: Any


@dataclasses.dataclass(frozen=True, slots=True)
class IntervalRow:
    """One interval's distribution over the last minute, in milliseconds."""

    label: str
    count: int
    mean: str
    percentiles: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class TunableRow:
    """One tunable in force."""

    name: str
    value: str
    unit: str
    bounds: str
    effect: str
    help: str
    is_default: bool


@dataclasses.dataclass(frozen=True, slots=True)
class VersionRow:
    """One version in the history."""

    number: int
    created_at: Any
    author: str
    changes: tuple[str, ...]
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class PoolPage:
    """One pool on the overview page. `is_readable` is False where Redis could not be asked."""

    name: str
    is_readable: bool
    version: int
    applied: str
    gauges: tuple[tuple[str, str], ...]
    intervals: tuple[IntervalRow, ...]
    tunables: tuple[TunableRow, ...]
    versions: tuple[VersionRow, ...]


def present_pool(
    name: str,
    *,
    snapshot: Mapping[str, Any] | None,
    announced: AnnouncedTunables,
    versions: Iterable[Version],
) -> PoolPage:
    """The page of a pool from its snapshot (None where there is none), tunables in force and newest versions."""
    state = snapshot or {}
    values = announced.tunables.as_dict()
    return PoolPage(
        name=name,
        is_readable=snapshot is not None,
        version=announced.version,
        applied=f"applied on {state.get('applied_by', 0)} of {state.get('num_engines', 0)} engines",
        gauges=tuple((label, _number(state.get(key))) for key, label in _GAUGES.items()),
        intervals=tuple(
            _present_interval(label, state.get("intervals", {}).get(key)) for key, label in _INTERVALS.items()
        ),
        tunables=tuple(_present_tunable(spec, values[spec.name]) for spec in describe()),
        versions=tuple(_present_version(version) for version in versions),
    )


def _present_interval(label: str, figures: Mapping[str, Any] | None) -> IntervalRow:
    figures = figures or {}
    return IntervalRow(
        label=label,
        count=figures.get("count", 0),
        mean=_milliseconds(figures.get("mean")),
        percentiles=tuple(_milliseconds(figures.get(name)) for name in _PERCENTILES),
    )


def _present_tunable(spec: TunableSpec, value: Any) -> TunableRow:
    return TunableRow(
        name=spec.name,
        value=_number(value),
        unit=spec.unit,
        bounds=spec.bounds,
        effect=spec.effect,
        help=spec.help,
        is_default=value == spec.default,
    )


def _present_version(version: Version) -> VersionRow:
    return VersionRow(
        number=version.number,
        created_at=version.created_at,
        author=version.author,
        changes=tuple(f"{name}: {_number(old)} → {_number(new)}" for name, (old, new) in version.changes.items()),
        reason=version.reason,
    )


def _number(value: Any) -> str:
    if value is None:
        return _NOTHING
    if isinstance(value, float):
        return f"{value:g}" if value < 1e6 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return _NOTHING
    milliseconds = seconds * 1000
    return f"{milliseconds:,.0f} ms" if milliseconds >= 100 else f"{milliseconds:.1f} ms"
