"""How much of the waiting room a request may use: the last of it is kept for the urgent."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator

import msgspec

from serving.contracts.errors import QueueFull
from serving.contracts.tunables import Tunables

_ROUNDING = 1e-9
"""A ratio times a count may miss a whole number by the error of floating point."""


@dataclasses.dataclass(frozen=True, slots=True)
class Share:
    """The part of a waiting room that one request may use: `bounds` are the pool's tunables, with the bounds of the
    queue lowered to that part; `is_whole` where they were not."""

    bounds: Tunables
    is_whole: bool

    @classmethod
    def of(cls, tunables: Tunables, *, priority: int) -> Share:
        """All for requests with a priority below 0; for others all but `urgent_queue_ratio` of each bound, rounded down
        to whole sequences and tokens: at least one of each is left."""
        kept_sequences = _kept_of(tunables.max_queue_requests, tunables.urgent_queue_ratio)
        kept_tokens = _kept_of(tunables.max_queue_tokens, tunables.urgent_queue_ratio)
        if priority < 0 or not (kept_sequences or kept_tokens):
            return cls(tunables, is_whole=True)
        lowered = msgspec.structs.replace(
            tunables,
            max_queue_requests=tunables.max_queue_requests - kept_sequences,
            max_queue_tokens=tunables.max_queue_tokens - kept_tokens,
        )
        return cls(lowered, is_whole=False)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Let a refusal by these bounds say for whom the rest is kept, where there is a rest."""
        try:
            yield
        except QueueFull as error:
            if self.is_whole:
                raise
            raise QueueFull(
                f"{error.message} (urgent_queue_ratio = {self.bounds.urgent_queue_ratio:g} of the queue is kept for "
                f"requests with a priority below 0)",
                retry_after_seconds=error.retry_after_seconds,
                is_final=error.is_final,
            ) from error


def _kept_of(bound: int, ratio: float) -> int:
    return math.floor(bound * ratio + _ROUNDING)
