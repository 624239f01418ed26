"""What is told of a request once it has ended. Pure functions of what the gateway knows of it then."""

from __future__ import annotations

import functools

import msgspec

from serving.contracts.ids import EngineId
from serving.contracts.messages import Span
from serving.contracts.tunables import Tunables
from serving.gateway.observer import Ended, KeptTexts
from serving.gateway.pools import PoolWatcher
from serving.gateway.requests import Choice, InFlight

_NOBODY_KNOWS = 0
_MOST_SPANS = 64
_MOST_KEPT_PROMPT_TOKENS = 64 * 1024
"""Of a longer prompt, its beginning fills what is kept."""


def account_of(request: InFlight, *, outcome: str, now: float, watcher: PoolWatcher) -> Ended:
    """The whole account of a request that ended at `now`, in seconds of the gateway's clock."""
    generation, usage = request.generation, request.stream.usage
    view = watcher.view(generation.pool)
    e2e, ttft, itl = now - generation.arrived_at, _ttft_seconds(request), _itl_seconds(request)
    meets_ttft, meets_itl = _objectives_met(
        outcome, ttft_seconds=e2e if ttft is None else ttft, itl_seconds=itl, tunables=view.tunables
    )
    return Ended(
        request_id=generation.request_id,
        pool=generation.pool,
        outcome=outcome,
        was_scheduled=request.started,
        e2e_seconds=e2e,
        prompt_tokens=len(generation.prompt_ids),
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.num_cached_tokens,
        num_choices=len(request.choices),
        queue_seconds=request.queue_seconds,
        ttft_seconds=ttft,
        itl_seconds=itl,
        meets_ttft=meets_ttft,
        meets_itl=meets_itl,
        num_preemptions=0 if usage.timings is None else usage.timings.num_preemptions,
        num_attempts=max(choice.attempt for choice in request.choices),
        engine="" if request.engine_id is None else watcher.engine_name(generation.pool, request.engine_id),
        engine_id=request.engine_id,
        sole_engine_id=_sole_engine_of(request),
        tunables_version=watcher.version_run(generation.pool, request.engine_id),
        origin=generation.origin,
        params=generation.params[0],
        num_stop_strings=len(generation.stop),
        priority=generation.priority,
        timeout_seconds=generation.timeout_seconds,
        spans=_spans_of(request, request.choices[0], now=now),
        texts=_texts_of(request),
    )


def _ttft_seconds(request: InFlight) -> float | None:
    first = [choice.first_token_at for choice in request.choices if choice.first_token_at is not None]
    return min(first) - request.generation.arrived_at if first else None


def _itl_seconds(request: InFlight) -> float | None:
    """The mean over all gaps of all choices."""
    seconds, num_gaps = 0.0, 0
    for choice in request.choices:
        if choice.first_token_at is not None and choice.last_token_at is not None:
            seconds += choice.last_token_at - choice.first_token_at
            num_gaps += len(choice.generated_ids) - 1
    return seconds / num_gaps if num_gaps else None


def _sole_engine_of(request: InFlight) -> EngineId | None:
    engines = {choice.engine_id if choice.attempt == 1 else None for choice in request.choices}
    return engines.pop() if len(engines) == 1 else None


def _objectives_met(
    outcome: str, *, ttft_seconds: float, itl_seconds: float | None, tunables: Tunables
) -> tuple[bool, bool]:
    has_finished = outcome.startswith("finished:")
    meets_ttft = ttft_seconds * 1000 <= tunables.slo_ttft_ms
    meets_itl = itl_seconds is None or itl_seconds * 1000 <= tunables.slo_itl_ms
    return has_finished and meets_ttft, has_finished and meets_itl


def _spans_of(request: InFlight, choice: Choice, *, now: float) -> tuple[Span, ...]:
    """The engine's account of the choice's last attempt that it told of. Of an end that the gateway made (a stop
    string, an abort) no engine tells: what followed the attempt's first token counts as one run then, in a batch of
    unknown size."""
    if choice.timings is None or choice.timed_from is None:
        return ()
    arrived_at = request.generation.arrived_at
    whole_ms = (now - arrived_at) * 1000
    told_ms = max((span.offset_ms + span.duration_ms for span in choice.timings.spans), default=0.0)
    # When it was scheduled is known as late as word of it came: what would end after the request began earlier.
    shift_ms = min((choice.timed_from - arrived_at) * 1000, whole_ms - told_ms)
    spans = [
        msgspec.structs.replace(span, offset_ms=round(max(0.0, span.offset_ms + shift_ms), 2))
        for span in choice.timings.spans
    ]
    num_decoded = len(choice.generated_ids) - choice.num_generated_before - 1
    if not choice.is_told_whole and num_decoded > 0 and spans:
        ended_at = now if choice.finish_reason is None or choice.last_token_at is None else choice.last_token_at
        offset_ms = round(spans[-1].offset_ms + spans[-1].duration_ms, 2)
        duration_ms = max(0.0, round((ended_at - arrived_at) * 1000 - offset_ms, 2))
        spans = [*spans[: _MOST_SPANS - 1], Span("decode", offset_ms, duration_ms, num_decoded, _NOBODY_KNOWS)]
    return tuple(spans)


def _texts_of(request: InFlight) -> KeptTexts | None:
    if not request.generation.origin.keeps_text:
        return None
    prompt_ids = request.generation.prompt_ids[:_MOST_KEPT_PROMPT_TOKENS]
    outputs = tuple([str(choice.kept_text or "") for choice in request.choices])
    return KeptTexts(functools.partial(request.text_model.write_out, prompt_ids), outputs)
