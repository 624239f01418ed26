"""What is known of a run beside its summary: each of its requests, and what the server says of itself afterwards."""

from __future__ import annotations

import msgspec

from serving.contracts.steps import StepBatch
from serving.lab.summaries import Outcome


class AtRest(msgspec.Struct, frozen=True, kw_only=True):
    """What a pool still held when it had been given time to come to rest: sequences, and the permits of its door.
    `has_others` says that others sent requests meanwhile, so that some of it may be theirs."""

    num_running: int
    num_waiting: int
    permits_requests: int
    permits_tokens: int
    has_others: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is left."""
        return not (self.num_running or self.num_waiting or self.permits_requests or self.permits_tokens)


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """`outcomes` are the run's requests. `logged` counts them by outcome as the server's own log of requests has them,
    `rest` is what the pool still held; both None where nobody could be asked. `steps` are its engines' latest."""

    outcomes: tuple[Outcome, ...]
    logged: dict[str, int] | None = None
    rest: AtRest | None = None
    steps: tuple[StepBatch, ...] = ()
