"""From an engine's events to the caller's text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from serving.contracts.errors import (
    ContextLengthExceeded,
    DomainError,
    EngineFailure,
    QueueTimeout,
)
from serving.contracts.ids import EngineId
from serving.contracts.messages import Accepted, Event, Finished, Refused, Returned, Tokens
from serving.gateway.generation import ChoiceDelta
from serving.gateway.observer import RequestObserver
from serving.gateway.requests import Choice, InFlight

Verdict = DomainError | Literal["resubmit", "stopped"] | None
"""What the gateway has to do: fail the request, submit the choice again, call it off at its engine, or nothing."""


class Delivery:
    """Applies events to the requests they belong to; owns nothing, on the gateway's event loop.

    The caller has dropped what belongs to another attempt or to an ended choice.
    """

    def __init__(self, *, observer: RequestObserver, clock: Callable[[], float]) -> None:
        self._observer = observer
        self._clock = clock

    def deliver(self, request: InFlight, choice: Choice, event: Event, *, engine_id: EngineId) -> Verdict:
        """Take one event in; says what is to be done about it."""
        if isinstance(event, Tokens):
            return self._deliver_tokens(request, choice, event)
        if isinstance(event, Finished):
            return self._finish(request, choice, event)
        if isinstance(event, Accepted):
            choice.engine_id = engine_id
            choice.entry_id = None
            choice.lost_at = None
            return None
        if isinstance(event, Returned):
            return "resubmit"
        return _refusal(event)

    def _deliver_tokens(self, request: InFlight, choice: Choice, event: Tokens) -> Verdict:
        known = len(choice.generated_ids)
        if event.start_index > known:
            return "resubmit"  # what lies between was lost on the way
        token_ids = event.token_ids[known - event.start_index :]
        if not token_ids:
            return None
        self._note_times(request, choice, event)
        choice.generated_ids.extend(token_ids)
        choice.num_unsent_tokens += len(token_ids)
        request.stream.num_completion_tokens += len(token_ids)
        text, stopped = choice.stop_strings.push(choice.detokenizer.push(token_ids))
        if stopped:
            self._close(request, choice, text, reason="stop")
            return "stopped"
        if text:
            self._send(request, choice, text)
        return None

    def _note_times(self, request: InFlight, choice: Choice, event: Tokens) -> None:
        now = self._clock()
        pool, arrived_at = request.generation.pool, request.generation.arrived_at
        if not request.started:
            # When it was first scheduled the engine alone knows; what the owner had waited before is part of its count.
            queue_seconds = now - arrived_at if event.timings is None else event.timings.queue_seconds
            self._observer.scheduled(pool, queue_seconds=queue_seconds)
            self._observer.first_token(pool, ttft_seconds=now - arrived_at)
            request.stream.timings = event.timings
        elif choice.last_token_at is not None:
            self._observer.token_gap(pool, itl_seconds=now - choice.last_token_at)
        choice.started = True
        choice.last_token_at = now
        request.stream.mark_started()

    def _finish(self, request: InFlight, choice: Choice, event: Finished) -> Verdict:
        if event.reason == "error":
            return EngineFailure(event.message or "the engine failed on this request")
        if event.reason == "abort":
            return "resubmit"  # not on this owner's word: the engine had taken it for dead
        if event.num_generated > len(choice.generated_ids):
            return "resubmit"
        request.stream.timings = event.timings
        text, stopped = choice.stop_strings.push(choice.detokenizer.finish())
        if stopped:
            self._close(request, choice, text, reason="stop")
        else:
            self._close(request, choice, text + choice.stop_strings.finish(), reason=event.reason)
        return None

    def _close(self, request: InFlight, choice: Choice, text: str, *, reason: Literal["stop", "length"]) -> None:
        choice.finished = True
        choice.finish_reason = reason
        request.stream.push(ChoiceDelta(choice.key.choice, text, choice.num_unsent_tokens, reason))

    def _send(self, request: InFlight, choice: Choice, text: str) -> None:
        request.stream.push(ChoiceDelta(choice.key.choice, text, choice.num_unsent_tokens))
        choice.num_unsent_tokens = 0


def _refusal(event: Refused) -> Verdict:
    if event.code == "context_length_exceeded":
        return ContextLengthExceeded(event.message)
    if event.code == "queue_timeout":
        return QueueTimeout(event.message)
    if event.code == "draining":
        return "resubmit"
    return EngineFailure(event.message)
