"""The gateway's record of a request that has not ended."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, Protocol

from serving.contracts.ids import EngineId, OwnerId
from serving.contracts.messages import SequenceKey, Submit
from serving.contracts.sampling import SamplingParams
from serving.gateway.generation import Generation
from serving.gateway.stream import GenerationStream
from serving.gateway.text.detokenizer import Detokenizer
from serving.gateway.text.stop_strings import StopStrings

Permit = Any
"""The waiting room's own value: the gateway holds it and gives it back, and never looks inside."""


class WaitingRoom(Protocol):
    """Where a request's permit to wait goes back, and is kept alive meanwhile."""

    async def release(self, permit: Permit) -> None:
        """Give the permit back. Idempotent."""

    async def renew(self, permits: list[Permit]) -> None:
        """Extend the permits' leases."""


@dataclasses.dataclass(slots=True)
class Choice:
    """One sequence of a request: what has been delivered, and where the rest is being computed."""

    key: SequenceKey
    params: SamplingParams
    detokenizer: Detokenizer
    stop_strings: StopStrings
    attempt: int = 0
    entry_id: bytes | None = None
    """Of the current attempt's Submit in the inbox."""
    engine_id: EngineId | None = None
    """Who accepted the current attempt."""
    submitted_at: float = 0.0
    generated_ids: list[int] = dataclasses.field(default_factory=list)
    num_unsent_tokens: int = 0
    last_token_at: float | None = None
    started: bool = False
    finished: bool = False
    finish_reason: Literal["stop", "length"] | None = None
    num_lost_engines: int = 0
    lost_at: float | None = None
    """Since when nothing runs it: its engine was lost, and none has accepted it again."""

    def next_submit(self, generation: Generation, *, owner_id: OwnerId, now: float) -> Submit:
        """Begin another attempt: what is left to compute after the tokens delivered so far."""
        self.attempt += 1
        self.entry_id = None
        self.engine_id = None
        self.submitted_at = now
        return Submit(
            key=self.key,
            attempt=self.attempt,
            owner_id=owner_id,
            tenant=generation.tenant,
            prompt_ids=generation.prompt_ids,
            params=self.params,
            generated_ids=list(self.generated_ids),
            waited_seconds=0.0 if self.started else now - generation.arrived_at,
        )


@dataclasses.dataclass(slots=True)
class InFlight:
    """A request from its submission to its end."""

    generation: Generation
    choices: list[Choice]
    stream: GenerationStream
    permit: Permit | None

    @property
    def started(self) -> bool:
        """Whether any of its choices was scheduled."""
        return any(choice.started for choice in self.choices)

    @property
    def all_started(self) -> bool:
        """Whether none of its choices waits any more."""
        return all(choice.started or choice.finished for choice in self.choices)

    @property
    def finished(self) -> bool:
        """Whether all of its choices ended."""
        return all(choice.finished for choice in self.choices)

    def unfinished(self) -> list[Choice]:
        """The choices that go on."""
        return [choice for choice in self.choices if not choice.finished]
