"""Typed look-ups in the JSON files of a model folder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from serving.engine.models.problem import ModelFolderProblem

_LARGEST_INTEGER = 2**31 - 1
_SHOWN_DIGITS = 40


class Fields:
    """Typed look-ups in one JSON object of a model folder. Owns nothing; refuses what is missing or of another type.

    `defaults` stand for fields that are absent or null.
    """

    def __init__(
        self, folder: Path, file: str, values: Mapping[str, Any], *, defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.folder = folder
        self.file = file
        self.values = values
        self._defaults = defaults or {}

    def with_defaults(self, defaults: Mapping[str, Any]) -> Fields:
        """The same object, with `defaults` for what it leaves open."""
        return Fields(self.folder, self.file, self.values, defaults=defaults)

    def refuse(self, name: str, problem: str) -> NoReturn:
        """Raise `ModelFolderProblem` about the field `name`."""
        raise ModelFolderProblem(self.folder, f"{self.file}: {name}", problem)

    def get(self, name: str) -> Any:
        """The field's value as it is, or none where it is absent or null."""
        value = self.values.get(name)
        return self._defaults.get(name) if value is None else value

    def integer(self, name: str, default: int | None = None) -> int:
        """A positive integer of at most 2³¹ - 1: what is more is no size of anything."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST_INTEGER:
            self.refuse(name, f"must be an integer from 1 to {_LARGEST_INTEGER}, not {_shortened(value)}")
        return int(value)

    def number(self, name: str, default: float | None = None) -> float:
        """A positive number."""
        value = self._value(name, default)
        if not is_positive_number(value):
            self.refuse(name, f"must be a positive number, not {value!r}")
        return float(value)

    def optional_number(self, name: str) -> float | None:
        """A positive number, or none where the field is absent or null."""
        return None if self.get(name) is None else self.number(name)

    def numbers(self, name: str, *, count: int) -> tuple[float, ...]:
        """A list of `count` positive numbers."""
        value = self._value(name, None)
        if not isinstance(value, list) or len(value) != count or not all(map(is_positive_number, value)):
            found = f"{len(value)} values" if isinstance(value, list) else repr(value)
            self.refuse(name, f"must be a list of {count} positive numbers, not {found}")
        return tuple(map(float, value))

    def flag(self, name: str, *, default: bool) -> bool:
        """True or false."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            self.refuse(name, f"must be true or false, not {value!r}")
        return bool(value)

    def part(self, name: str) -> Fields | None:
        """The object under `name`, or none where it is absent or null."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.refuse(name, f"must be an object, not {value!r}")
        return Fields(self.folder, f"{self.file}: {name}", value)

    def _value(self, name: str, default: Any) -> Any:
        value = self.get(name)
        if value is not None:
            return value
        if default is None:
            self.refuse(name, "is missing")
        return default


def is_positive_number(value: object) -> bool:
    """Whether `value` is a finite number above zero, and no truth value."""
    return not isinstance(value, bool) and isinstance(value, (int, float)) and math.isfinite(value) and value > 0


def _shortened(value: object) -> str:
    """A value as a message shows it: a number may have any number of digits."""
    if isinstance(value, int) and value.bit_length() > _SHOWN_DIGITS * 3:
        return "one with more than 30 digits"
    return repr(value)


def read_fields(folder: Path, name: str) -> Fields:
    """The JSON object in the file `name`; raises `ModelFolderProblem` where there is none."""
    try:
        values = json.loads((folder / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFolderProblem(folder, name, "there is no such file") from None
    except (OSError, ValueError) as error:
        raise ModelFolderProblem(folder, name, f"cannot be read ({error})") from None
    if not isinstance(values, dict):
        raise ModelFolderProblem(folder, name, "is not a JSON object")
    return Fields(folder, name, values)
