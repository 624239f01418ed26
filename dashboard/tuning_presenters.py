"""What the Tuning pages show of versions, their effect, guardrails and canaries: pure functions."""

from __future__ import annotations

import dataclasses
import datetime
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from dashboard.presenters import ChangeRow, StoredVersion, present_changes
from dashboard.tuning_effect import Effect
from serving.contracts.guardrails import GUARDRAIL_METRICS, is_share
from serving.contracts.presets import PRESETS, preset_changes
from serving.contracts.tunables import Tunables
from serving.telemetry.conditions import Condition, told
from serving.tuning.canary_figures import EngineFigures

_GUARDRAIL_MARKS = {"watching": "◔", "passed": "✓", "missed": "↩", "superseded": "–", "stuck": "▲", "called_off": "–"}


class StoredGuardrail(Protocol):
    """A guardrail as the database has it."""

    metric: str
    bound: float
    window_seconds: float
    watch_seconds: float
    state: str
    starts_at: datetime.datetime
    missed_since: datetime.datetime | None
    note: str


@dataclasses.dataclass(frozen=True, slots=True)
class GuardrailLine:
    """A guardrail in a line. `state` is its word in the database, `mark` a sign for it."""

    state: str
    mark: str
    text: str
    since: datetime.datetime | None = None
    until: datetime.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRow:
    """One version in the history. `standing` says where it runs: `in force`, `on one engine`, or nothing."""

    number: int
    created_at: datetime.datetime
    author: str
    changes: tuple[ChangeRow, ...]
    reason: str
    standing: str
    is_in_force: bool
    may_be_restored: bool
    guardrail: GuardrailLine | None
    canary: str
    effect: Effect | None


@dataclasses.dataclass(frozen=True, slots=True)
class PresetCard:
    """A preset and what it would change of the values in force; `texts` are its values as levers show them, in JSON."""

    name: str
    reason: str
    changes: tuple[ChangeRow, ...]
    texts: str


@dataclasses.dataclass(frozen=True, slots=True)
class MetricOption:
    """Something that a guardrail may watch."""

    name: str
    title: str
    unit: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CanaryRow:
    """One engine while a version is tried."""

    name: str
    engine_id: str
    is_canary: bool
    version: int
    step: str
    rate: str
    preemptions: str
    running: int
    waiting: int


def present_history(
    versions: Sequence[StoredVersion],
    effects: Mapping[int, Effect],
    *,
    in_force: int,
    tried: int | None,
) -> tuple[HistoryRow, ...]:
    """A row a version, with its effect where one is known."""
    return tuple(
        HistoryRow(
            number=version.number,
            created_at=version.created_at,
            author=version.author,
            changes=present_changes(version.changes),
            reason=version.reason,
            standing=_standing(version.number, in_force=in_force, tried=tried),
            is_in_force=version.number == in_force,
            may_be_restored=tried is None and version.number != in_force,
            guardrail=present_guardrail(getattr(version, "guardrail", None), tried_on=_tried_on(version)),
            canary=_canary_in_words(getattr(version, "canary", None)),
            effect=effects.get(version.number),
        )
        for version in versions
    )


def present_guardrail(guardrail: StoredGuardrail | None, *, tried_on: str | None = None) -> GuardrailLine | None:
    """What a guardrail watches, or what became of it. `tried_on` is the engine that alone runs the version."""
    if guardrail is None:
        return None
    mark = _GUARDRAIL_MARKS.get(guardrail.state, "?")
    condition = Condition(
        metric=guardrail.metric, bound=guardrail.bound, for_seconds=guardrail.window_seconds, is_above=True
    )
    words = condition.describe()
    if guardrail.state == "watching":
        until = guardrail.starts_at + datetime.timedelta(seconds=guardrail.watch_seconds)
        return GuardrailLine(
            guardrail.state,
            mark,
            f"rolls back at {words}, measured {_of_whom(tried_on)}",
            guardrail.missed_since,
            until,
        )
    if guardrail.state == "passed":
        return GuardrailLine(guardrail.state, mark, f"passed: not once {words}")
    if guardrail.state == "missed":
        return GuardrailLine(guardrail.state, mark, f"missed: {guardrail.note}")
    if guardrail.state == "called_off":
        return GuardrailLine(guardrail.state, mark, guardrail.note)
    return GuardrailLine(guardrail.state, mark, f"{guardrail.state}: {guardrail.note}")


def present_presets(in_force: Tunables) -> tuple[PresetCard, ...]:
    """Every preset against the values in force."""
    return tuple(_present_preset(name, in_force) for name in PRESETS)


def present_metrics() -> tuple[MetricOption, ...]:
    """What a guardrail may watch."""
    return tuple(
        MetricOption(name, title, "share, 0 to 1" if is_share(name) else "ms")
        for name, title in GUARDRAIL_METRICS.items()
    )


def present_canary(figures: Iterable[EngineFigures]) -> tuple[CanaryRow, ...]:
    """A row an engine."""
    return tuple(
        CanaryRow(
            name=engine.name,
            engine_id=engine.engine_id,
            is_canary=engine.is_canary,
            version=engine.version,
            step="–" if engine.work.step_ms is None else told(engine.work.step_ms, "ms"),
            rate=f"{engine.work.generated_tokens_per_second:,.1f}",
            preemptions=f"{engine.work.num_preemptions:,}",
            running=engine.num_running,
            waiting=engine.num_waiting,
        )
        for engine in figures
    )


def _present_preset(name: str, in_force: Tunables) -> PresetCard:
    wanted = preset_changes(name)
    texts = {field: _as_typed(value) for field, value in wanted.items()}
    return PresetCard(
        name, PRESETS[name].reason, present_changes(in_force.changed(wanted).differences(in_force)), json.dumps(texts)
    )


def _as_typed(value: Any) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)


def _standing(number: int, *, in_force: int, tried: int | None) -> str:
    return "in force" if number == in_force else "on one engine" if number == tried else ""


def _of_whom(tried_on: str | None) -> str:
    return "over all engines" if tried_on is None else f"on {tried_on} alone"


def _tried_on(version: StoredVersion) -> str | None:
    canary = getattr(version, "canary", None)
    return canary.engine_id if canary is not None and canary.state == "running" else None


def _canary_in_words(canary: Any) -> str:
    if canary is None:
        return ""
    if canary.state == "running":
        return f"is tried on {canary.engine_id}"
    ending = "taken to all engines" if canary.state == "promoted" else "taken back"
    return f"was tried on one engine first, and {ending} by {canary.ended_by or 'the system'}"
