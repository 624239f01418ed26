"""The gateway's record of a request that has not ended."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, Protocol

from serving.contracts.accounting import Spent
from serving.contracts.ids import EngineId, OwnerId
from serving.contracts.messages import EngineTimings, SequenceKey, Submit
from serving.contracts.sampling import SamplingParams
from serving.gateway.generation import Generation
from serving.gateway.logprobs import EntryLine, PromptEntries
from serving.gateway.stream import GenerationStream
from serving.gateway.text.detokenizer import Detokenizer
from serving.gateway.text.stop_strings import StopStrings
from serving.gateway.text.tokenizer import TextModel

_MOST_KEPT_CHARACTERS = 64 * 1024

Permit = Any
"""The waiting room's own value: the gateway holds it and gives it back, and never looks inside."""


class WaitingRoom(Protocol):
    """Where a request's permit is kept alive, leaves the waiting room, and is settled when the request ends."""

    async def release(self, permit: Permit) -> None:
        """The request waits no more, since it runs. Idempotent."""

    async def renew(self, held: list[tuple[Permit, Spent]]) -> None:
        """Extend the permits' leases, saying what each request has used so far."""

    async def close(self, permit: Permit, spent: Spent, *, still_waits: bool) -> None:
        """The request ended, having used so much; `still_waits` unless the permit was released. Once a permit."""


class KeptText:
    """Owns the beginning of a choice's text as it is sent, up to 64 Ki characters; on the gateway's event loop."""

    __slots__ = ("_num_left", "_parts")

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._num_left = _MOST_KEPT_CHARACTERS

    def add(self, text: str) -> None:
        """This was sent."""
        if text and self._num_left > 0:
            self._parts.append(text[: self._num_left])
            self._num_left -= len(text)

    def __str__(self) -> str:
        return "".join(self._parts)


@dataclasses.dataclass(slots=True)
class Choice:
    """One sequence of a request: what has been delivered, and where the rest is being computed.

    `submitted_at` is when the current attempt was last seen waiting in the inbox, `last_heard_at` when an engine last
    said something of it; in seconds of the gateway's clock.
    """

    key: SequenceKey
    params: SamplingParams
    detokenizer: Detokenizer
    stop_strings: StopStrings
    submitted_at: float
    last_heard_at: float
    entries: EntryLine | None = None
    """Of a choice that asked for log probabilities."""
    prompt_entries: PromptEntries | None = None
    """The prompt's, until they are given with the first text."""
    attempt: int = 0
    entry_id: bytes | None = None
    """Of the current attempt's Submit in the inbox."""
    engine_id: EngineId | None = None
    """Who accepted the current attempt."""
    generated_ids: list[int] = dataclasses.field(default_factory=list)
    num_unsent_tokens: int = 0
    first_token_at: float | None = None
    last_token_at: float | None = None
    started: bool = False
    """Whether any attempt was scheduled."""
    scheduled_at: float | None = None
    """When the current attempt was."""
    timings: EngineTimings | None = None
    """What an engine last told of it."""
    timed_from: float | None = None
    """When the attempt that they are of was scheduled."""
    num_generated_before: int = 0
    """Tokens that were delivered before the current attempt."""
    is_told_whole: bool = False
    """Whether they tell of its end too."""
    kept_text: KeptText | None = None
    """Of a choice whose text may be kept."""
    finished: bool = False
    finish_reason: Literal["stop", "length"] | None = None
    num_lost_engines: int = 0
    num_ahead: int | None = None
    """Sequences before it where it waits, as last heard."""
    lost_at: float | None = None
    """Since when nothing runs it: its engine was lost, and none has accepted it again."""


@dataclasses.dataclass(slots=True)
class InFlight:
    """A request from its submission to its end."""

    generation: Generation
    text_model: TextModel
    choices: list[Choice]
    stream: GenerationStream
    permit: Permit | None
    released: bool = False
    """Whether the permit has left the waiting room."""
    first_token_sent: bool = False
    queue_seconds: float | None = None
    """From its arrival to its first scheduling."""
    engine_id: EngineId | None = None
    """Who accepted any of it last, or failed it."""

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

    @property
    def spent(self) -> Spent:
        """What it has used so far: nothing, until something of it was scheduled."""
        if not self.started:
            return Spent()
        return Spent(len(self.generation.prompt_ids), self.stream.num_completion_tokens)

    @property
    def num_ahead(self) -> int | None:
        """Sequences before the first of its choices, as last heard; None where no engine has it."""
        return min((choice.num_ahead for choice in self.choices if choice.num_ahead is not None), default=None)

    def next_submit(self, choice: Choice, *, owner_id: OwnerId, now: float) -> Submit:
        """Begin another attempt at a choice: what is left to compute after the tokens delivered so far."""
        choice.attempt += 1
        choice.entry_id = None
        choice.engine_id = None
        choice.num_ahead = None
        choice.scheduled_at = None
        choice.num_generated_before = len(choice.generated_ids)
        self.stream.num_ahead = self.num_ahead
        choice.submitted_at = choice.last_heard_at = now
        if self.started and choice.attempt > 1 and choice.lost_at is None:
            choice.lost_at = now
        return Submit(
            key=choice.key,
            attempt=choice.attempt,
            owner_id=owner_id,
            tenant=self.generation.tenant,
            prompt_ids=self.generation.prompt_ids,
            params=choice.params,
            generated_ids=list(choice.generated_ids),
            priority=self.generation.priority,
            weight=self.generation.weight,
            cache_salt=self.generation.cache_salt,
            waited_seconds=self._age_in_queue(choice, now),
            timeout_seconds=None if self.started else self.generation.timeout_seconds,
        )

    def _age_in_queue(self, choice: Choice, now: float) -> float:
        """How long the choice counts as waiting, in seconds: since the request came.

        But a request that runs is past the waiting room: what was served nothing yet waits anew, or else it would be
        refused at once.
        """
        return 0.0 if self.started and not choice.generated_ids else now - self.generation.arrived_at

    def blame_engine_of(self, choice: Choice) -> None:
        """The request fails for what became of this choice: at the engine that had it, if one had."""
        self.engine_id = choice.engine_id or self.engine_id

    def unfinished(self) -> list[Choice]:
        """The choices that go on."""
        return [choice for choice in self.choices if not choice.finished]
