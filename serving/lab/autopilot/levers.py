"""Which tunable helps which objective, which way it is moved, and how far in one step. Values and pure functions."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from serving.contracts.tunables import Tunables, describe

Direction = Literal[-1, 1]

LEVERS: Final[Mapping[str, str]] = {
    "max_running": "sequences in the running batch",
    "max_batch_tokens": "token budget of a step",
    "max_prefill_chunk": "tokens of one prompt in a step",
    "prefill_share": "prefill's share of a step while others decode",
    "batch_window_ms": "how long company is awaited",
    "max_queue_requests": "requests that may wait",
    "max_queue_tokens": "prompt tokens that may wait",
    "max_long_prefills": "long prompts at once",
}
"""Tunables that an autopilot can move, and what they are in a word or two."""

_SHARE_STEP = 0.1
_FACTOR = 1.25
_SMALLEST_WINDOW_MS = 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What is seen of a pool beside its percentiles: sequences that wait and run, and the share of KV memory held."""

    num_waiting: int
    num_running: int
    kv_used_ratio: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A way to better an objective: `field` is moved in `direction`, since `because`, where `applies`."""

    field: str
    direction: Direction
    because: str
    applies: Callable[[Sight, Tunables], bool]


def _always(_sight: Sight, _tunables: Tunables) -> bool:
    return True


def _places_are_full(sight: Sight, tunables: Tunables) -> bool:
    has_memory = sight.kv_used_ratio < 0.8
    return sight.num_waiting > 0 and sight.num_running >= 0.9 * tunables.max_running and has_memory


def _some_wait(sight: Sight, _tunables: Tunables) -> bool:
    return sight.num_waiting > 0


def _places_are_free(sight: Sight, tunables: Tunables) -> bool:
    return sight.num_running < 0.9 * tunables.max_running


_NO_WINDOW = Remedy(
    field="batch_window_ms", direction=-1, because="no request waits for company any longer", applies=_always
)
_MORE_PLACES = Remedy(
    field="max_running",
    direction=1,
    because="requests wait while the batch is full and KV memory is left",
    applies=_places_are_full,
)
_SHORTER_QUEUE = Remedy(
    field="max_queue_requests",
    direction=-1,
    because="what is let in waits less, and the excess is refused at once",
    applies=_some_wait,
)
_FEWER_QUEUED_TOKENS = Remedy(
    field="max_queue_tokens",
    direction=-1,
    because="less work is let in to wait, and the excess is refused at once",
    applies=_some_wait,
)
_MORE_PREFILL = Remedy(
    field="prefill_share", direction=1, because="prompts get more of each step", applies=_places_are_free
)
_LARGER_CHUNKS = Remedy(
    field="max_prefill_chunk", direction=1, because="a prompt needs fewer steps", applies=_places_are_free
)
_LARGER_STEPS = Remedy(
    field="max_batch_tokens", direction=1, because="a step takes more of the prompts that wait", applies=_some_wait
)
_SMALLER_CHUNKS = Remedy(
    field="max_prefill_chunk", direction=-1, because="a prompt holds up the streams for less of a step", applies=_always
)
_LESS_PREFILL = Remedy(field="prefill_share", direction=-1, because="streams get more of each step", applies=_always)
_FEWER_LONG = Remedy(
    field="max_long_prefills", direction=-1, because="fewer long prompts share the steps", applies=_always
)
_SMALLER_STEPS = Remedy(field="max_batch_tokens", direction=-1, because="steps are shorter", applies=_always)
_FEWER_PLACES = Remedy(field="max_running", direction=-1, because="a smaller batch has shorter steps", applies=_always)

REMEDIES: Final[Mapping[str, tuple[Remedy, ...]]] = {
    "ttft_p95": (
        _NO_WINDOW,
        _MORE_PLACES,
        _MORE_PREFILL,
        _LARGER_CHUNKS,
        _LARGER_STEPS,
        _SHORTER_QUEUE,
        _FEWER_QUEUED_TOKENS,
    ),
    "queue_p95": (_NO_WINDOW, _MORE_PLACES, _LARGER_STEPS, _SHORTER_QUEUE, _FEWER_QUEUED_TOKENS),
    "itl_p95": (_SMALLER_CHUNKS, _LESS_PREFILL, _FEWER_LONG, _SMALLER_STEPS, _FEWER_PLACES),
    "e2e_p95": (_NO_WINDOW, _MORE_PLACES, _SHORTER_QUEUE, _FEWER_QUEUED_TOKENS, _FEWER_PLACES),
}
"""What may help each objective, the gentlest first: what costs nothing, then what trades another latency, last what
refuses work."""


def moved(field: str, value: float, direction: Direction, *, low: float, high: float) -> Any:
    """The value one step on, within `low` to `high`: a tenth more or less of a share, a quarter of a count, half of a
    window; None where there is nowhere left to go."""
    spec = next(spec for spec in describe() if spec.name == field)
    if field == "prefill_share":
        wanted = round(value + direction * _SHARE_STEP, 2)
    elif field == "batch_window_ms":
        wanted = value / 2 if direction < 0 else max(2 * value, _SMALLEST_WINDOW_MS)
        wanted = 0.0 if wanted < _SMALLEST_WINDOW_MS else wanted
    else:
        wanted = value * _FACTOR if direction > 0 else value / _FACTOR
    wanted = min(high, max(low, wanted))
    if spec.kind == "integer":
        wanted = math.ceil(wanted) if direction > 0 else math.floor(wanted)
    # A value that stands beyond the bounds is brought to them by a move towards them alone.
    if (wanted - value) * direction <= 0:
        return None
    return spec.checked(wanted)
