"""What a page shows, from what was read: pure functions, nothing that formats lives in a template."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol

from serving.contracts.tunables import TunableSpec, describe

_GROUPS = {
    "Batch": ("mode", "batch_window_ms", "max_running", "max_batch_tokens"),
    "Prompts and streams": (
        "max_prefill_chunk",
        "prefill_share",
        "long_prompt_tokens",
        "max_long_prefills",
        "long_prompt_pool",
    ),
    "Queue": (
        "order",
        "max_queue_requests",
        "max_queue_tokens",
        "urgent_queue_ratio",
        "max_queue_wait_ms",
    ),
    "Objectives": ("slo_ttft_ms", "slo_itl_ms", "early_reject"),
    "KV memory": ("kv_limit_ratio", "kv_watermark_ratio", "prefix_caching"),
    "Speculation": ("speculation", "max_draft_tokens"),
}
_TRADES = {
    "Batch": "Throughput against latency: a larger batch makes more tokens a second, and each stream waits longer for"
    " its next one.",
    "Prompts and streams": "TTFT against ITL: what prompts get of a step comes sooner to its first token, and running"
    " streams wait for it.",
    "Queue": "Waiting against refusing: a longer queue turns fewer away and lets them wait longer.",
    "Objectives": "Late against refused: with early_reject, what would miss its objective is turned away at once.",
    "KV memory": "Company against recomputing: memory that is kept free or cached spares preemptions and prompts, and"
    " has room for fewer sequences.",
    "Speculation": "Rows against steps: guesses that are right make several tokens in one step, those that are wrong"
    " are rows computed in vain.",
}
_REST = "Other"
_UNIT_SUFFIXES = ("_ms", "_ratio")
_ABBREVIATIONS = {"kv": "KV", "slo": "SLO", "ttft": "TTFT", "itl": "ITL"}
_RATIO_STEP = "0.005"


class StoredVersion(Protocol):
    """A version of a pool's tunables as the database has it."""

    number: int
    values: dict[str, Any]
    changes: dict[str, Any]
    reason: str
    author: str
    created_at: datetime


@dataclasses.dataclass(frozen=True, slots=True)
class Lever:
    """One tunable as the Live page offers it. `low`, `high` and `step` are HTML's numbers, empty for choices and names;
    `suggestions` are names that would do."""

    name: str
    label: str
    kind: str
    unit: str
    bounds: str
    low: str
    high: str
    step: str
    choices: tuple[str, ...]
    suggestions: tuple[str, ...]
    effect: str
    help: str


@dataclasses.dataclass(frozen=True, slots=True)
class LeverGroup:
    """Levers under one heading. `trade` says what they weigh against what; empty where nothing holds for all."""

    title: str
    levers: tuple[Lever, ...]
    trade: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class ChangeRow:
    """What a version changed of one tunable."""

    name: str
    old: str
    new: str
    unit: str


@dataclasses.dataclass(frozen=True, slots=True)
class VersionRow:
    """One version in the list."""

    number: int
    created_at: datetime
    author: str
    changes: tuple[ChangeRow, ...]
    reason: str
    is_in_force: bool


def present_levers(specs: Sequence[TunableSpec], *, pools: Sequence[str] = ()) -> tuple[LeverGroup, ...]:
    """A lever for each tunable, under headings; a tunable that nobody put under one is under the last. `pools` are
    those that a tunable which names a pool may name."""
    by_name = {spec.name: spec for spec in specs}
    grouped = {name for names in _GROUPS.values() for name in names}
    titles = {**_GROUPS, _REST: tuple(name for name in by_name if name not in grouped)}
    groups = (
        LeverGroup(
            title,
            tuple(_present_lever(by_name[name], pools) for name in names if name in by_name),
            trade=_TRADES.get(title, ""),
        )
        for title, names in titles.items()
    )
    return tuple(group for group in groups if group.levers)


def present_windows(windows_seconds: Iterable[int]) -> tuple[str, ...]:
    """The names of the windows that percentiles are over, in their order."""
    return tuple(f"{seconds} s" if seconds < 60 else f"{seconds // 60} m" for seconds in windows_seconds)


def present_versions(versions: Iterable[StoredVersion], *, in_force: int) -> tuple[VersionRow, ...]:
    """A row a version; `in_force` is the newest version's number."""
    return tuple(
        VersionRow(
            number=version.number,
            created_at=version.created_at,
            author=version.author,
            changes=present_changes(version.changes),
            reason=version.reason,
            is_in_force=version.number == in_force,
        )
        for version in versions
    )


def present_changes(changes: Mapping[str, Any]) -> tuple[ChangeRow, ...]:
    """A row a tunable of `{name: [old, new]}`."""
    units = {spec.name: "" if spec.unit == "ratio" else spec.unit for spec in describe()}
    return tuple(ChangeRow(name, _shown(old), _shown(new), units.get(name, "")) for name, (old, new) in changes.items())


def _present_lever(spec: TunableSpec, pools: Sequence[str]) -> Lever:
    is_number = spec.kind in ("integer", "number")
    low, high = spec.low, spec.high
    return Lever(
        name=spec.name,
        label=_label(spec.name),
        kind=spec.kind,
        unit=spec.unit,
        bounds=_bounds(spec),
        low="" if low is None else f"{low:.15g}",
        high="" if high is None else f"{high:.15g}",
        step="" if not is_number else _RATIO_STEP if spec.unit == "ratio" else "1",
        choices=spec.choices,
        suggestions=tuple(pools) if spec.kind == "name" else (),
        effect=spec.effect,
        help=spec.help,
    )


def _bounds(spec: TunableSpec) -> str:
    if spec.kind == "choice":
        return ", ".join(spec.choices)
    return "A pool's name, or empty" if spec.kind == "name" else f"{_shown(spec.low)} – {_shown(spec.high)}"


def _label(name: str) -> str:
    """A tunable's name as people write it; its unit stands beside it."""
    for suffix in _UNIT_SUFFIXES:
        name = name.removesuffix(suffix)
    first, *rest = name.split("_")
    return " ".join([_ABBREVIATIONS.get(first, first.capitalize()), *(_ABBREVIATIONS.get(word, word) for word in rest)])


def _shown(value: Any) -> str:
    if isinstance(value, float) and not value.is_integer():
        return f"{value:g}"
    return f"{value:,.0f}" if isinstance(value, (int, float)) else str(value) or "(empty)"
