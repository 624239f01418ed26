"""What is read from the form of a workload. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard.lab.workloads_forms import ARRIVAL_KINDS, LENGTH_KINDS, count_classes
from serving.contracts.errors import InvalidValue
from serving.lab.workloads.codec import decode_workload, workload_to_dict
from serving.lab.workloads.workload import Workload

_WHOLE = {
    *("clients", "num_requests", "seed", "tokens", "low", "high", "priority", "count"),
}
_NEEDED_ABOVE = ("name", "seed", "warm_up_seconds")
_LENGTHS = ("prompt_tokens", "output_tokens")


class FormErrors(Exception):
    """What is wrong, by the name of the field; all that is beside no field has the name empty."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        super().__init__("the form is not right")
        self.errors = dict(errors)


def read_form(typed: Mapping[str, str], base: Workload) -> Workload:
    """The workload that the fields describe, on top of what they were filled with. Raises `FormErrors`."""
    content = workload_to_dict(base)
    errors: dict[str, str] = {}
    read = _Reading(typed, errors)
    for name in ("name", "about", "source"):
        content[name] = typed.get(name, "").strip()
    for name in ("duration_seconds", "num_requests", "warm_up_seconds", "seed"):
        content[name] = read.number(name, needed=name in _NEEDED_ABOVE)
    content["arrivals"] = _read_arrivals(read, content["arrivals"])
    classes, places = _read_classes(read, content["classes"])
    content["classes"] = classes
    if errors:
        raise FormErrors(errors)
    try:
        return decode_workload(content)
    except InvalidValue as error:
        raise FormErrors({_as_typed(error.field, places): _bounds_of(error)}) from None


def _read_arrivals(read: _Reading, was: dict[str, Any]) -> dict[str, Any]:
    kind = read.kind("arrivals", ARRIVAL_KINDS)
    found: dict[str, Any] = {"kind": kind}
    if kind == "trace":
        if was["kind"] != "trace":
            read.errors["arrivals"] = "A trace comes from a file or from the request log"
        found = {**was, "kind": kind}
    for field in ARRIVAL_KINDS.get(kind, ()):
        name = f"arrivals.{field}"
        found[field] = read.numbers(name) if field == "rates" else read.number(name, needed=True)
    return found


def _read_classes(read: _Reading, was: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[int]]:
    """The classes that have a name and are not left out, and the places in the form at which they stand."""
    classes, places = [], []
    for index in range(count_classes(read.typed)):
        name = f"classes[{index}]"
        if read.typed.get(f"{name}.leave_out") or not read.text(f"{name}.name"):
            continue
        place = read.typed.get(f"{name}.was", "")
        before = was[int(place)] if place.isdecimal() and int(place) < len(was) else {}
        classes.append(_read_class(read, name, before))
        places.append(index)
    return classes, places


def _read_class(read: _Reading, name: str, before: dict[str, Any]) -> dict[str, Any]:
    prefix_share = read.number(f"{name}.prefixes.share") or 0
    prefixes = None
    if prefix_share:
        prefixes = {
            "share": prefix_share,
            "tokens": read.number(f"{name}.prefixes.tokens", needed=True),
            "count": read.number(f"{name}.prefixes.count", needed=True),
        }
    return {
        "name": read.text(f"{name}.name"),
        "tenant": read.text(f"{name}.tenant"),
        "share": read.number(f"{name}.share", needed=True),
        "priority": read.number(f"{name}.priority") or 0,
        "streaming_share": read.number(f"{name}.streaming_share", needed=True),
        "cancelled_share": read.number(f"{name}.cancelled_share") or 0,
        "prefixes": prefixes,
        "slo": {field: read.number(f"{name}.slo.{field}") for field in ("ttft_ms", "itl_ms", "e2e_ms")},
        **{field: _read_lengths(read, f"{name}.{field}", before.get(field)) for field in _LENGTHS},
    }


def _read_lengths(read: _Reading, name: str, before: dict[str, Any] | None) -> dict[str, Any]:
    kind = read.kind(name, LENGTH_KINDS)
    if kind == "histogram":
        if before is None or before["kind"] != "histogram":
            read.errors[name] = "What was counted comes from the JSON or from the request log"
            return {"kind": "fixed", "tokens": 1}
        return before
    # The bounds of a lognormal distribution may be left open.
    found = {
        field: read.number(f"{name}.{field}", needed=not (kind == "lognormal" and field in ("low", "high")))
        for field in LENGTH_KINDS.get(kind, ())
    }
    return {"kind": kind, **{field: value for field, value in found.items() if value is not None}}


class _Reading:
    """Owns what was found wrong so far, in one reading of a form."""

    def __init__(self, typed: Mapping[str, str], errors: dict[str, str]) -> None:
        self.typed = typed
        self.errors = errors

    def text(self, name: str) -> str:
        """What was typed, without spaces around it."""
        return self.typed.get(name, "").strip()

    def kind(self, name: str, kinds: Mapping[str, Any]) -> str:
        """Which kind was chosen."""
        kind = self.text(f"{name}.kind")
        if kind not in kinds:
            self.errors[name] = "Choose one of " + ", ".join(kinds)
        return kind

    def number(self, name: str, *, needed: bool = False) -> float | None:
        """A number; None where nothing was typed."""
        text = self.text(name)
        if not text:
            if needed:
                self.errors[name] = "A number is needed here"
            return None
        return self._number(name, text, whole=name.rpartition(".")[2] in _WHOLE)

    def numbers(self, name: str) -> list[float]:
        """Numbers between commas or spaces."""
        found = [self._number(name, text, whole=False) for text in self.text(name).replace(",", " ").split()]
        return [number for number in found if number is not None]

    def _number(self, name: str, text: str, *, whole: bool) -> float | None:
        try:
            if len(text) > 30:
                raise ValueError(text)
            return int(text) if whole else float(text)
        except ValueError:
            self.errors[name] = f"{'A whole number' if whole else 'A number'} is needed here, not {text[:30]}"
            return None


def _as_typed(field: str, places: list[int]) -> str:
    """The form's name for a field of the workload, whose classes left some of the form's out."""
    if not field.startswith("classes["):
        return field if field != "workload" else ""
    index, bracket, rest = field.removeprefix("classes[").partition("]")
    return f"classes[{places[int(index)]}{bracket}{rest}" if int(index) < len(places) else ""


def _bounds_of(error: InvalidValue) -> str:
    return f"It must be {error.bounds}"
