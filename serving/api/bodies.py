"""Bodies of answers in OpenAI's shapes."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from serving.api.logprobs import ChatLogprobs, CompletionLogprobs, PromptLogprobs

FinishReason = Literal["stop", "length"]


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """How many of the prompt's tokens were found in the KV cache."""

    cached_tokens: int


class UsageBody(msgspec.Struct, frozen=True):
    """Tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails


class ChatMessage(msgspec.Struct, frozen=True):
    """What the model said."""

    role: Literal["assistant"]
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True):
    """One answer."""

    index: int
    message: ChatMessage
    finish_reason: FinishReason
    logprobs: ChatLogprobs | None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer of a chat completion."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True):
    """What a chunk adds to a message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """A chunk's part of one choice."""

    index: int
    delta: ChatDelta
    finish_reason: FinishReason | None = None
    logprobs: ChatLogprobs | None = None


class ChatCompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a streamed chat completion."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageBody | UnsetType | None = UNSET


class CompletionChoice(msgspec.Struct, frozen=True):
    """One text, or a chunk's part of it."""

    index: int
    text: str
    finish_reason: FinishReason | None = None
    logprobs: CompletionLogprobs | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole completion, or one event of a streamed one."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody | UnsetType | None = UNSET


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served. `max_model_len` is the longest prompt and answer together, in tokens."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "footplate"
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """All models."""

    object: Literal["list"] = "list"
    data: list[Model]


encode = msgspec.json.Encoder().encode
