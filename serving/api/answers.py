"""Answers as they were gathered, before any endpoint gives them its shape."""

from __future__ import annotations

import dataclasses

from serving.api.bodies import FinishReason
from serving.api.tool_streams import CallPart
from serving.gateway.logprobs import PromptEntries, TokenEntry


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """One choice, whole. `logprobs` and `prompt` are None where they were not asked for."""

    text: str
    finish_reason: FinishReason
    logprobs: tuple[TokenEntry, ...] | None = None
    prompt: PromptEntries | None = None
    calls: tuple[CallPart, ...] = ()
