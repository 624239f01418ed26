"""The form of a workload: its fields, named as the workload's own are. Pure functions.

A field of the form has the name by which an error names it, `classes[1].prompt_tokens.sigma`, so that each error
stands beside its field. What the form does not show (a trace, what was counted) is kept from what it was filled with.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from serving.lab.workloads.checking import MAX_CLASSES
from serving.lab.workloads.codec import workload_to_dict
from serving.lab.workloads.workload import Workload

ARRIVAL_KINDS: dict[str, tuple[str, ...]] = {
    "constant": ("rate",),
    "poisson": ("rate",),
    "gamma": ("rate", "cv"),
    "closed_loop": ("clients", "think_seconds"),
    "ramp": ("start_rate", "end_rate"),
    "steps": ("rates",),
    "trace": ("speed",),
}
LENGTH_KINDS: dict[str, tuple[str, ...]] = {
    "fixed": ("tokens",),
    "uniform": ("low", "high"),
    "lognormal": ("median", "sigma", "low", "high"),
    "histogram": (),
}
_KINDS_IN_WORDS = {
    "constant": "evenly",
    "poisson": "at random (Poisson)",
    "gamma": "in bursts (gamma)",
    "closed_loop": "closed loop: clients that wait",
    "ramp": "ramp: a rate that rises or falls",
    "steps": "steps of rates",
    "trace": "a trace, as it is",
    "fixed": "fixed",
    "uniform": "uniform",
    "lognormal": "lognormal",
    "histogram": "counted, as it is",
}
_LABELS = {
    "rate": "Requests a second",
    "cv": "Variation (cv; 1 is at random)",
    "clients": "Clients",
    "think_seconds": "Pause after an answer (s)",
    "start_rate": "Rate at the beginning",
    "end_rate": "Rate at the end",
    "rates": "Rates, one a step",
    "speed": "Times as fast",
    "tokens": "Tokens",
    "low": "From (tokens)",
    "high": "To (tokens)",
    "median": "Median (tokens)",
    "sigma": "Spread (sigma)",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """One field: `kinds` are those kinds of arrivals or lengths that have it (empty: all), `is_number` how it is
    typed."""

    name: str
    label: str
    value: str = ""
    error: str = ""
    help: str = ""
    kinds: str = ""
    is_number: bool = True


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of the kinds that a group of fields may be of."""

    value: str
    label: str
    is_chosen: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Fields of which those of the chosen kind count."""

    name: str
    title: str
    error: str
    choices: tuple[Choice, ...]
    inputs: tuple[Input, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClassFields:
    """The fields of one class. `was` is its place in what the form was filled with, empty for a new one."""

    name: str
    title: str
    was: str
    is_left_out: bool
    inputs: tuple[Input, ...]
    lengths: tuple[Group, ...]
    more: tuple[Input, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadForm:
    """All fields, with what stands in them."""

    inputs: tuple[Input, ...]
    amounts: tuple[Input, ...]
    arrivals: Group
    classes: tuple[ClassFields, ...]


def form_of(workload: Workload, *, typed: Mapping[str, str] | None = None, errors: Mapping[str, str]) -> WorkloadForm:
    """The form filled with a workload, or with what was typed on top of it."""
    content = workload_to_dict(workload)
    told = _values_of(content) if typed is None else typed

    def make(name: str, label: str, **more: Any) -> Input:
        return Input(name=name, label=label, value=told.get(name, ""), error=errors.get(name, ""), **more)

    num_classes = count_classes(told)
    return WorkloadForm(
        inputs=(
            make("name", "Name", is_number=False, help="Small letters, digits, _ . and -"),
            make("about", "About", is_number=False),
            make("source", "Source of its figures", is_number=False),
        ),
        amounts=(
            make("duration_seconds", "Duration (s)"),
            make("num_requests", "Or so many requests"),
            make("warm_up_seconds", "Warm-up (s)"),
            make("seed", "Seed"),
        ),
        arrivals=_group(
            "arrivals", "Arrivals", told, errors, kinds=ARRIVAL_KINDS, make=make, hides=_hidden(content["arrivals"])
        ),
        classes=tuple(
            _class_fields(index, content, told, errors, make=make) for index in range(min(num_classes + 1, MAX_CLASSES))
        ),
    )


_Make = Callable[..., Input]


def _class_fields(
    index: int, content: dict[str, Any], told: Mapping[str, str], errors: Mapping[str, str], *, make: _Make
) -> ClassFields:
    name = f"classes[{index}]"
    was = told.get(f"{name}.was", "")
    before = content["classes"][int(was)] if was.isdecimal() and int(was) < len(content["classes"]) else {}
    titles = {"prompt_tokens": "Prompts", "output_tokens": "Answers"}
    return ClassFields(
        name=name,
        title=told.get(f"{name}.name", "") or "One more class",
        was=was,
        is_left_out=bool(told.get(f"{name}.leave_out")),
        inputs=(
            make(f"{name}.name", "Name", is_number=False),
            make(f"{name}.share", "Share (a weight)"),
            make(f"{name}.tenant", "Tenant", is_number=False),
            make(f"{name}.priority", "Priority"),
        ),
        lengths=tuple(
            _group(
                f"{name}.{field}", title, told, errors, kinds=LENGTH_KINDS, make=make, hides=_hidden(before.get(field))
            )
            for field, title in titles.items()
        ),
        more=(
            make(f"{name}.streaming_share", "Streamed (0 to 1)"),
            make(f"{name}.cancelled_share", "Cancelled (0 to 1)"),
            make(f"{name}.prefixes.share", "Shared beginning (0 to 1)"),
            make(f"{name}.prefixes.tokens", "… of so many tokens"),
            make(f"{name}.prefixes.count", "… so many different ones"),
            make(f"{name}.slo.ttft_ms", "Objective: TTFT (ms)"),
            make(f"{name}.slo.itl_ms", "Objective: ITL (ms)"),
            make(f"{name}.slo.e2e_ms", "Objective: E2E (ms)"),
        ),
    )


def _group(
    name: str,
    title: str,
    told: Mapping[str, str],
    errors: Mapping[str, str],
    *,
    kinds: Mapping[str, tuple[str, ...]],
    make: _Make,
    hides: frozenset[str],
) -> Group:
    chosen = told.get(f"{name}.kind", "") or next(iter(kinds))
    fields = dict.fromkeys(field for kind, fields in kinds.items() if kind not in hides for field in fields)
    return Group(
        name=name,
        title=title,
        error=errors.get(name, ""),
        choices=tuple(
            Choice(value=kind, label=_KINDS_IN_WORDS[kind], is_chosen=kind == chosen)
            for kind in kinds
            if kind not in hides or kind == chosen
        ),
        inputs=tuple(
            make(
                f"{name}.{field}",
                _LABELS[field],
                kinds=" ".join(kind for kind in kinds if field in kinds[kind]),
                is_number=field != "rates",
            )
            for field in fields
        ),
    )


def _hidden(before: dict[str, Any] | None) -> frozenset[str]:
    """The kinds that cannot be typed, unless they are there already."""
    return frozenset({"trace", "histogram"} - {(before or {}).get("kind")})


def _values_of(content: dict[str, Any]) -> dict[str, str]:
    """What stands in the fields of a form that is filled with a workload."""
    values: dict[str, str] = {}

    def put(name: str, value: Any) -> None:
        if isinstance(value, dict):
            for field, part in value.items():
                put(f"{name}.{field}", part)
        elif name.endswith(".rates"):
            values[name] = ", ".join(_shown(rate) for rate in value)
        elif not isinstance(value, list) and value is not None:
            values[name] = value if isinstance(value, str) else _shown(value)

    for name, value in content.items():
        if name == "classes":
            for index, each in enumerate(value):
                put(f"classes[{index}]", each)
                values[f"classes[{index}].was"] = str(index)
        else:
            put(name, value)
    fresh = f"classes[{len(content['classes'])}]"
    return {**values, **{f"{fresh}.{field}": value for field, value in _FRESH.items()}}


_FRESH = {
    "share": "1",
    "priority": "0",
    "streaming_share": "1",
    "cancelled_share": "0",
    "prompt_tokens.kind": "lognormal",
    "prompt_tokens.median": "300",
    "prompt_tokens.sigma": "0.7",
    "output_tokens.kind": "lognormal",
    "output_tokens.median": "100",
    "output_tokens.sigma": "0.7",
}


def _shown(number: float) -> str:
    return f"{number:.12g}"


def count_classes(told: Mapping[str, str]) -> int:
    """How many classes a form has that are filled in."""
    return next((index for index in range(MAX_CLASSES, 0, -1) if told.get(f"classes[{index - 1}].name", "").strip()), 0)
