"""The form that asks what if?, as it was typed. Pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from serving.contracts.texts import without_secrets
from serving.contracts.tunables import Tunables, TunableSpec, describe

PREFIX: Final = "set."
"""Before a tunable's name, in the form's fields."""
_LONGEST: Final = 200


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A tunable in the form. `value` is what stands in the field, `current` the value in force."""

    name: str
    unit: str
    choices: tuple[str, ...]
    value: str
    current: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What was typed. An empty `workload` is the traffic of the last hour; `values` are texts by tunable."""

    pool: str = ""
    workload: str = ""
    values: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def proposed(self) -> dict[str, Any]:
        """The values that were typed; what is no number stays a text, which the tunable refuses by its own words."""
        specs = {spec.name: spec for spec in describe()}
        return {name: _value(specs[name], text) for name, text in self.values.items()}


def read_draft(typed: Mapping[str, str], *, prefix: str = PREFIX) -> Draft:
    """A posted form, or a query whose tunables have no prefix, without API keys that somebody pasted by mistake."""
    texts = {
        spec.name: without_secrets(typed[prefix + spec.name].strip()[:_LONGEST])
        for spec in describe()
        if prefix + spec.name in typed
    }
    pool, workload = (without_secrets(typed.get(name, "")[:_LONGEST]) for name in ("pool", "workload"))
    return Draft(pool=pool, workload=workload, values=texts)


def fields_for(draft: Draft, current: Tunables) -> tuple[Field, ...]:
    """The form's fields: what was typed, or else what is in force."""
    values = current.as_dict()
    return tuple(
        Field(
            name=spec.name,
            unit="" if spec.unit == "ratio" else spec.unit,
            choices=tuple(spec.choices),
            value=draft.values.get(spec.name, _text(values[spec.name])),
            current=_text(values[spec.name]),
        )
        for spec in describe()
    )


def _value(spec: TunableSpec, text: str) -> Any:
    if spec.kind in ("choice", "name"):
        return text
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if spec.kind == "integer" and number.is_integer() else number


def _text(value: Any) -> str:
    return f"{value:.15g}" if isinstance(value, float) else str(value)
