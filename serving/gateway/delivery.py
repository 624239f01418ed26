"""From an engine's events to the caller's text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from serving.contracts.errors import (
    ContextLengthExceeded,
    DomainError,
    EngineFailure,
    NoEngine,
    QueueTimeout,
    UnusableGrammar,
)
from serving.contracts.ids import EngineId
from serving.contracts.messages import (
    Accepted,
    EngineTimings,
    Event,
    Finished,
    Refused,
    Returned,
    Scheduled,
    Tokens,
)
from serving.contracts.sampling import GRAMMAR_FAULT
from serving.gateway.generation import ChoiceDelta
from serving.gateway.logprobs import PromptEntries, TokenEntry
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
        choice.last_heard_at = self._clock()
        if isinstance(event, Tokens):
            return self._deliver_tokens(request, choice, event)
        if isinstance(event, Finished):
            return self._finish(request, choice, event)
        if isinstance(event, Accepted):
            choice.engine_id = request.engine_id = engine_id
            choice.entry_id = None
            choice.lost_at = None
            choice.num_ahead = event.num_ahead
            request.stream.num_ahead = request.num_ahead
            return None
        if isinstance(event, Scheduled):
            self._start(request, choice, age_seconds=event.age_seconds)
            return None
        if isinstance(event, Returned):
            return "resubmit"
        return _refusal(request, event)

    def _deliver_tokens(self, request: InFlight, choice: Choice, event: Tokens) -> Verdict:
        known = len(choice.generated_ids)
        if event.start_index > known:
            return "resubmit"  # what lies between was lost on the way
        token_ids = event.token_ids[known - event.start_index :]
        if not token_ids:
            return None
        self._note_token(request, choice, event)
        text, num_read, stopped = _read(choice, token_ids, event)
        choice.generated_ids.extend(token_ids[:num_read])
        choice.num_unsent_tokens += num_read
        request.stream.num_completion_tokens += num_read
        if event.prompt_logprobs is not None:
            prompt_ids = request.generation.prompt_ids
            choice.prompt_entries = PromptEntries(request.text_model, prompt_ids, event.prompt_logprobs)
        if stopped:
            entries = None if choice.entries is None else choice.entries.stop(text)
            self._close(request, choice, text, entries, reason="stop")
            self._note_decode(request, choice)
            return "stopped"
        if text:
            self._send(request, choice, text)
        return None

    def _start(self, request: InFlight, choice: Choice, *, age_seconds: float) -> None:
        """The choice no longer waits. The engine alone knows since when; counted back from now, on this clock."""
        if not request.started:
            waited = self._clock() - request.generation.arrived_at - age_seconds
            request.queue_seconds = max(0.0, waited)
            engine_id = choice.engine_id if choice.attempt == 1 else None
            self._observer.scheduled(request.generation.pool, queue_seconds=request.queue_seconds, engine_id=engine_id)
        choice.started = True
        choice.scheduled_at = self._clock() - age_seconds
        request.stream.mark_started()

    def _note_token(self, request: InFlight, choice: Choice, event: Tokens) -> None:
        now = self._clock()
        if not choice.started:
            self._start(request, choice, age_seconds=0.0)
        if event.timings is not None:
            _note_timings(request, choice, event.timings)
        if choice.first_token_at is None:
            choice.first_token_at = now
        engine_id = choice.engine_id if choice.attempt == 1 else _engine_since(choice)
        if not request.first_token_sent:
            request.first_token_sent = True
            ttft_seconds = now - request.generation.arrived_at
            self._observer.first_token(request.generation.pool, ttft_seconds=ttft_seconds, engine_id=engine_id)
        elif choice.last_token_at is not None:
            itl_seconds = now - choice.last_token_at
            self._observer.token_gap(request.generation.pool, itl_seconds=itl_seconds, engine_id=engine_id)
        choice.last_token_at = now

    def _note_decode(self, request: InFlight, choice: Choice) -> None:
        """How long a choice decoded which ends on a stop string: of its end, no engine tells."""
        if choice.first_token_at is not None:
            decode_seconds = self._clock() - choice.first_token_at
            request.stream.note_decode(choice.key.choice, decode_seconds=decode_seconds)

    def _finish(self, request: InFlight, choice: Choice, event: Finished) -> Verdict:
        if event.reason == "error" and event.message.startswith(GRAMMAR_FAULT):
            return UnusableGrammar(event.message)
        if event.reason == "error":
            return EngineFailure(event.message or "the engine failed on this request")
        if event.reason == "abort":
            return "resubmit"  # not on this owner's word: the engine had taken it for dead
        if event.num_generated > len(choice.generated_ids):
            return "resubmit"
        _note_timings(request, choice, event.timings)
        choice.is_told_whole = True
        if choice.params.embeds:
            return self._finish_embedding(request, choice, event.embedding)
        text, stopped = choice.stop_strings.push(choice.detokenizer.finish())
        if stopped:
            entries = None if choice.entries is None else choice.entries.stop(text)
            self._close(request, choice, text, entries, reason="stop")
        else:
            entries = None if choice.entries is None else choice.entries.finish()
            self._close(request, choice, text + choice.stop_strings.finish(), entries, reason=event.reason)
        return None

    def _finish_embedding(self, request: InFlight, choice: Choice, embedding: bytes | None) -> Verdict:
        if embedding is None:
            return EngineFailure("the engine has made no embedding of this prompt")
        if not choice.started:
            self._start(request, choice, age_seconds=0.0)
        choice.finished = True
        choice.finish_reason = "stop"
        request.stream.push(ChoiceDelta(choice.key.choice, "", 0, "stop", embedding=embedding))
        return None

    def _close(
        self,
        request: InFlight,
        choice: Choice,
        text: str,
        entries: tuple[TokenEntry, ...] | None,
        *,
        reason: Literal["stop", "length"],
    ) -> None:
        choice.finished = True
        choice.finish_reason = reason
        if choice.kept_text is not None:
            choice.kept_text.add(text)
        prompt, choice.prompt_entries = choice.prompt_entries, None
        request.stream.push(
            ChoiceDelta(choice.key.choice, text, choice.num_unsent_tokens, reason, logprobs=entries, prompt=prompt)
        )

    def _send(self, request: InFlight, choice: Choice, text: str) -> None:
        entries = None if choice.entries is None else choice.entries.release(text)
        prompt, choice.prompt_entries = choice.prompt_entries, None
        request.stream.push(
            ChoiceDelta(choice.key.choice, text, choice.num_unsent_tokens, logprobs=entries, prompt=prompt)
        )
        choice.num_unsent_tokens = 0
        if choice.kept_text is not None:
            choice.kept_text.add(text)


def _engine_since(choice: Choice) -> EngineId | None:
    """Whose doing it is how long the choice's next token took: nobody's where its attempt began after the token before,
    since the wait for another engine is in it."""
    return None if len(choice.generated_ids) == choice.num_generated_before else choice.engine_id


def _note_timings(request: InFlight, choice: Choice, timings: EngineTimings) -> None:
    request.stream.note_timings(timings, choice=choice.key.choice)
    choice.timings, choice.timed_from = timings, choice.scheduled_at


def _read(choice: Choice, token_ids: list[int], event: Tokens) -> tuple[str, int, bool]:
    """The text that the event's last tokens, `token_ids`, complete; how many of them were read; and whether a stop
    string ended it. Nothing behind the token that completes one is read: an engine that guesses tells of several tokens
    at once, and those would not have been generated."""
    logprobs = [] if choice.entries is None else (event.logprobs or [])[-len(token_ids) :]
    given = []
    for place, token_id in enumerate(token_ids):
        if choice.entries is None:
            piece = choice.detokenizer.push([token_id])
        else:
            piece = choice.entries.push([token_id], logprobs[place : place + 1], choice.detokenizer)
        text, stopped = choice.stop_strings.push(piece)
        given.append(text)
        if stopped:
            return "".join(given), place + 1, True
    return "".join(given), len(token_ids), False


def _refusal(request: InFlight, event: Refused) -> Verdict:
    if event.code == "context_length_exceeded":
        return ContextLengthExceeded(event.message)
    # A choice whose siblings run waits on: half an answer has been given already.
    if event.code == "draining" or (event.code == "queue_timeout" and request.started):
        return "resubmit"
    if event.code == "queue_timeout":
        return QueueTimeout(event.message)
    if event.code == "unsupported_schema":
        return NoEngine(event.message)  # while a pool's engines are being replaced, another may serve it
    return EngineFailure(event.message)
