"""The scheduling settings that change live: one definition from which every form, table and check derives."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from serving.contracts.errors import InvalidValue, UnknownField
from serving.contracts.ids import POOL_NAME, POOL_NAME_IN_WORDS

_NAME_OR_EMPTY = rf"\A(?:{POOL_NAME.pattern})?\Z"
Kind = Literal["choice", "integer", "name", "number"]
Effect = Literal["next step", "next request"]


def _tunable(*, about: str, unit: str, effect: Effect, low: float | None = None, high: float | None = None) -> Meta:
    return Meta(ge=low, le=high, description=about, extra={"unit": unit, "effect": effect})


class Tunables(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One version's values. Immutable; make another with `changed`. Lowering a cap drains, it never kills."""

    mode: Annotated[
        Literal["continuous", "static"],
        _tunable(
            about="continuous: sequences join and leave between steps; static: a batch ends before the next forms",
            unit="",
            effect="next step",
        ),
    ] = "continuous"
    batch_window_ms: Annotated[
        float,
        _tunable(
            about="How long the oldest waiting sequence may wait for company before it is scheduled",
            unit="ms",
            effect="next step",
            low=0,
            high=10_000,
        ),
    ] = 0.0
    max_running: Annotated[
        int, _tunable(about="Sequences in the running batch", unit="sequences", effect="next step", low=1, high=1024)
    ] = 32
    max_batch_tokens: Annotated[
        int,
        _tunable(
            about="Token budget of a step, prefill and decode together",
            unit="tokens",
            effect="next step",
            low=16,
            high=65_536,
        ),
    ] = 192
    max_prefill_chunk: Annotated[
        int, _tunable(about="Tokens of one prompt in one step", unit="tokens", effect="next step", low=1, high=65_536)
    ] = 192
    prefill_share: Annotated[
        float,
        _tunable(
            about="Share of the token budget for prefill while others decode: 0 decode first, 1 prefill first",
            unit="ratio",
            effect="next step",
            low=0,
            high=1,
        ),
    ] = 0.5
    long_prompt_tokens: Annotated[
        int,
        _tunable(
            about="A prompt of which more than this is still to be computed is long: it waits in a queue of its own",
            unit="tokens",
            effect="next step",
            low=1,
            high=10_000_000,
        ),
    ] = 1024
    max_long_prefills: Annotated[
        int,
        _tunable(
            about="Long prompts that may be in prefill at once; short ones overtake those that wait",
            unit="sequences",
            effect="next step",
            low=1,
            high=1024,
        ),
    ] = 1
    long_prompt_pool: Annotated[
        str,
        Meta(
            pattern=_NAME_OR_EMPTY,
            description="Another pool of the same model, which takes the prompts with more than long_prompt_tokens",
            extra={"unit": "", "effect": "next request"},
        ),
    ] = ""
    order: Annotated[
        Literal["fcfs", "priority", "fair"],
        _tunable(
            about="fcfs: by arrival; priority: urgent ones first, waiting counts; fair: the tenant served least first",
            unit="",
            effect="next step",
        ),
    ] = "fcfs"
    max_queue_requests: Annotated[
        int,
        _tunable(
            about="Sequences that may wait (each of n choices counts); more are refused",
            unit="sequences",
            effect="next request",
            low=1,
            high=100_000,
        ),
    ] = 256
    max_queue_tokens: Annotated[
        int,
        _tunable(
            about="Prompt tokens that may wait; a request that would exceed it is refused",
            unit="tokens",
            effect="next request",
            low=1,
            high=100_000_000,
        ),
    ] = 262_144
    max_queue_wait_ms: Annotated[
        float,
        _tunable(
            about="Longest wait before a request is first scheduled; then it is refused",
            unit="ms",
            effect="next step",
            low=1,
            high=3_600_000,
        ),
    ] = 60_000.0
    urgent_queue_ratio: Annotated[
        float,
        _tunable(
            about="Share of both bounds of the queue that is kept for requests with a priority below 0",
            unit="ratio",
            effect="next request",
            low=0,
            high=0.9,
        ),
    ] = 0.1
    slo_ttft_ms: Annotated[
        float,
        _tunable(
            about="Objective: the first token within this time; early_reject refuses by it",
            unit="ms",
            effect="next request",
            low=1,
            high=3_600_000,
        ),
    ] = 10_000.0
    slo_itl_ms: Annotated[
        float,
        _tunable(
            about="Objective: a gap between two tokens of a stream is no longer than this; nothing is refused by it",
            unit="ms",
            effect="next request",
            low=1,
            high=3_600_000,
        ),
    ] = 200.0
    early_reject: Annotated[
        Literal["off", "on"],
        _tunable(
            about="Refuse at once what would miss slo_ttft_ms or its deadline, at the rate at which the queue moves",
            unit="",
            effect="next request",
        ),
    ] = "off"
    kv_limit_ratio: Annotated[
        float,
        _tunable(
            about="Share of the KV pool that sequences may use", unit="ratio", effect="next step", low=0.01, high=1
        ),
    ] = 1.0
    kv_watermark_ratio: Annotated[
        float,
        _tunable(
            about="Share of the usable KV pool kept free when a sequence joins, so that those running can grow",
            unit="ratio",
            effect="next step",
            low=0,
            high=0.5,
        ),
    ] = 0.02
    prefix_caching: Annotated[
        Literal["on", "off"],
        _tunable(
            about="Keep the KV blocks of ended sequences: a prompt that begins alike is not computed again",
            unit="",
            effect="next step",
        ),
    ] = "on"
    speculation: Annotated[
        Literal["off", "on"],
        _tunable(
            about="Guess next tokens from what the context said before, and check several in one step, while that pays",
            unit="",
            effect="next step",
        ),
    ] = "off"
    max_draft_tokens: Annotated[
        int,
        _tunable(
            about="Tokens that are guessed of one sequence in one step, at most",
            unit="tokens",
            effect="next step",
            low=1,
            high=16,
        ),
    ] = 8

    def changed(self, changes: Mapping[str, Any]) -> Tunables:
        """A copy with `changes` applied.

        Raises `UnknownField` for a name that is no tunable and `InvalidValue` (naming field, value and bounds) for a
        value that its field does not admit.
        """
        specs = {spec.name: spec for spec in describe()}
        checked = {name: _spec_of(specs, name).checked(value) for name, value in changes.items()}
        return msgspec.structs.replace(self, **checked)

    def as_dict(self) -> dict[str, Any]:
        """Values by name, in the order of definition."""
        return msgspec.structs.asdict(self)

    def differences(self, older: Tunables) -> dict[str, list[Any]]:
        """`{name: [older value, value]}` of what differs."""
        before, after = older.as_dict(), self.as_dict()
        return {name: [before[name], after[name]] for name in after if before[name] != after[name]}


class TunableSpec(msgspec.Struct, frozen=True):
    """What is known of one tunable: everything that a form, a table or a check needs."""

    name: str
    kind: Kind
    default: Any
    unit: str
    effect: Effect
    help: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()

    @property
    def bounds(self) -> str:
        """The admitted values in words."""
        if self.kind == "choice":
            return "one of " + ", ".join(self.choices)
        if self.kind == "name":
            return f"empty, or the name of a pool: {POOL_NAME_IN_WORDS}"
        kind = "an integer" if self.kind == "integer" else "a number"
        return f"{kind} from {_plain(self.low)} to {_plain(self.high)}"

    def checked(self, value: Any) -> Any:
        """`value` in the field's own type; raises `InvalidValue` where the field does not admit it."""
        if self.kind == "choice":
            valid = isinstance(value, str) and value in self.choices
        elif self.kind == "name":
            valid = isinstance(value, str) and (value == "" or POOL_NAME.fullmatch(value) is not None)
        else:
            valid = self._is_number(value) and self._is_within(value)
        if not valid:
            raise InvalidValue(self.name, value, self.bounds)
        return float(value) if self.kind == "number" else int(value) if self.kind == "integer" else value

    def _is_number(self, value: Any) -> bool:
        if isinstance(value, int):  # of any size: some have no float
            return not isinstance(value, bool)
        return isinstance(value, float) and math.isfinite(value) and (self.kind == "number" or value.is_integer())

    def _is_within(self, value: float) -> bool:
        return (self.low is None or value >= self.low) and (self.high is None or value <= self.high)


_KINDS: Mapping[Any, Kind] = {int: "integer", float: "number", str: "name"}


def describe() -> tuple[TunableSpec, ...]:
    """Every tunable's specification, in the order of definition."""
    hints = typing.get_type_hints(Tunables, include_extras=True)
    return tuple(_describe_field(field, hints[field.name]) for field in msgspec.structs.fields(Tunables))


def _plain(bound: float | None) -> str:
    """A bound as people write it: no exponent, no needless fraction."""
    assert bound is not None, "every tunable number has both bounds"
    return str(int(bound)) if float(bound).is_integer() else str(bound)


def _describe_field(field: msgspec.structs.FieldInfo, hint: Any) -> TunableSpec:
    base, meta = hint.__origin__, hint.__metadata__[0]
    choices = typing.get_args(base) if typing.get_origin(base) is Literal else ()
    return TunableSpec(
        name=field.name,
        kind="choice" if choices else _KINDS[base],
        default=field.default,
        unit=meta.extra["unit"],
        effect=meta.extra["effect"],
        help=meta.description,
        low=meta.ge,
        high=meta.le,
        choices=choices,
    )


def _spec_of(specs: Mapping[str, TunableSpec], name: str) -> TunableSpec:
    spec = specs.get(name)
    if spec is None:
        raise UnknownField(f"{name!r} is not a tunable; there are: {', '.join(specs)}", param=name)
    return spec
