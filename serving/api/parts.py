"""Parts of bodies that several shapes have: tokens, times and calls."""

from __future__ import annotations

from msgspec import UNSET

from serving.api.answers import Answer
from serving.api.bodies import (
    ChatMessage,
    FinishReason,
    FunctionCall,
    FunctionCallDelta,
    PromptTokensDetails,
    TimingsBody,
    ToolCall,
    ToolCallDelta,
    UsageBody,
)
from serving.api.tool_streams import CallingDelta, CallPart
from serving.contracts.messages import EngineTimings
from serving.gateway.generation import ChoiceDelta, Usage


def usage_body(usage: Usage) -> UsageBody:
    """A request's tokens as OpenAI counts them: the prompt once, however many choices it has."""
    return UsageBody(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(usage.num_cached_tokens),
    )


def timings_body(usage: Usage) -> TimingsBody:
    """How long a request took. What engines have told nothing of is 0."""
    timings = usage.timings or EngineTimings()
    return TimingsBody(
        queue_ms=_milliseconds(timings.queue_seconds),
        prefill_ms=_milliseconds(timings.prefill_seconds),
        decode_ms=_milliseconds(timings.decode_seconds),
        num_cached_tokens=usage.num_cached_tokens,
        num_preemptions=timings.num_preemptions,
    )


def message_of(answer: Answer) -> ChatMessage:
    """What the model said: text, calls or both."""
    if not answer.calls:
        return ChatMessage("assistant", answer.text)
    return ChatMessage("assistant", answer.text or None, tool_calls=[_call_of(call) for call in answer.calls])


def call_deltas(delta: ChoiceDelta) -> list[ToolCallDelta]:
    """What a delta adds to calls."""
    return [_call_delta_of(part) for part in delta.calls] if isinstance(delta, CallingDelta) else []


def finish_reason_of(delta: ChoiceDelta) -> FinishReason | None:
    """Why the choice ended, where it did: OpenAI's word for an answer that calls tools is another."""
    return "tool_calls" if isinstance(delta, CallingDelta) and delta.stops_for_calls else delta.finish_reason


def _call_of(call: CallPart) -> ToolCall:
    assert call.call_id is not None, "a call's first part bears its id"
    assert call.name is not None, "a call's first part bears its name"
    return ToolCall(id=call.call_id, function=FunctionCall(call.name, call.arguments))


def _call_delta_of(part: CallPart) -> ToolCallDelta:
    if part.call_id is None:
        return ToolCallDelta(index=part.index, function=FunctionCallDelta(arguments=part.arguments))
    function = FunctionCallDelta(part.name or UNSET, part.arguments)
    return ToolCallDelta(index=part.index, id=part.call_id, type="function", function=function)


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 3)
