"""Answers in OpenAI's shapes, whole and as chunks of a stream. Each chunk is encoded once."""

from __future__ import annotations

from typing import Literal, Protocol

import msgspec
from msgspec import UNSET, UnsetType

from serving.gateway.generation import ChoiceDelta, Usage

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
    logprobs: None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer of a chat completion."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody


class ChatDelta(msgspec.Struct, frozen=True):
    """What a chunk adds to a message."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """A chunk's part of one choice."""

    index: int
    delta: ChatDelta
    finish_reason: FinishReason | None = None
    logprobs: None = None


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
    logprobs: None = None


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


class Shape(Protocol):
    """One endpoint's way to say what a request produced."""

    def openings(self, num_choices: int) -> list[bytes]:
        """Chunks before any text."""
        ...

    def chunk(self, delta: ChoiceDelta) -> bytes:
        """The chunk of some text."""
        ...

    def usage_chunk(self, usage: Usage) -> bytes:
        """The chunk without choices that counts the tokens."""
        ...

    def whole(self, texts: list[str], reasons: list[FinishReason], usage: Usage) -> bytes:
        """The answer in one piece."""
        ...


encode = msgspec.json.Encoder().encode


class ChatShape:
    """Owns nothing that changes: a chat completion's identity, and whether its chunks mention usage."""

    def __init__(self, *, request_id: str, created: int, model: str, include_usage: bool) -> None:
        self._id = "chatcmpl-" + request_id.removeprefix("req_")
        self._created = created
        self._model = model
        self._no_usage: UnsetType | None = None if include_usage else UNSET

    def openings(self, num_choices: int) -> list[bytes]:
        """The chunk that names the role, a choice."""
        opening = ChatDelta(role="assistant", content="")
        return [self._chunk([ChatChunkChoice(index, opening)]) for index in range(num_choices)]

    def chunk(self, delta: ChoiceDelta) -> bytes:
        """The chunk of some text."""
        added = ChatDelta(content=delta.text) if delta.text else ChatDelta()
        return self._chunk([ChatChunkChoice(delta.choice, added, delta.finish_reason)])

    def usage_chunk(self, usage: Usage) -> bytes:
        """The chunk without choices that counts the tokens."""
        return self._chunk([], usage_body(usage))

    def whole(self, texts: list[str], reasons: list[FinishReason], usage: Usage) -> bytes:
        """The answer in one piece."""
        choices = [
            ChatChoice(index, ChatMessage("assistant", text), reason)
            for index, (text, reason) in enumerate(zip(texts, reasons, strict=True))
        ]
        return encode(
            ChatCompletion(
                id=self._id, created=self._created, model=self._model, choices=choices, usage=usage_body(usage)
            )
        )

    def _chunk(self, choices: list[ChatChunkChoice], usage: UsageBody | None = None) -> bytes:
        return encode(
            ChatCompletionChunk(
                id=self._id,
                created=self._created,
                model=self._model,
                choices=choices,
                usage=usage or self._no_usage,
            )
        )


class CompletionShape:
    """Owns nothing that changes: a completion's identity, and whether its chunks mention usage."""

    def __init__(self, *, request_id: str, created: int, model: str, include_usage: bool) -> None:
        self._id = "cmpl-" + request_id.removeprefix("req_")
        self._created = created
        self._model = model
        self._no_usage: UnsetType | None = None if include_usage else UNSET

    def openings(self, num_choices: int) -> list[bytes]:
        """None: a completion has no role."""
        return []

    def chunk(self, delta: ChoiceDelta) -> bytes:
        """The chunk of some text."""
        return self._encode([CompletionChoice(delta.choice, delta.text, delta.finish_reason)], self._no_usage)

    def usage_chunk(self, usage: Usage) -> bytes:
        """The chunk without choices that counts the tokens."""
        return self._encode([], usage_body(usage))

    def whole(self, texts: list[str], reasons: list[FinishReason], usage: Usage) -> bytes:
        """The answer in one piece."""
        pairs = zip(texts, reasons, strict=True)
        choices = [CompletionChoice(index, text, reason) for index, (text, reason) in enumerate(pairs)]
        return self._encode(choices, usage_body(usage))

    def _encode(self, choices: list[CompletionChoice], usage: UsageBody | UnsetType | None) -> bytes:
        return encode(Completion(id=self._id, created=self._created, model=self._model, choices=choices, usage=usage))


def usage_body(usage: Usage) -> UsageBody:
    """A request's tokens as OpenAI counts them: the prompt once, however many choices it has."""
    return UsageBody(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        total_tokens=usage.prompt_tokens + usage.completion_tokens,
        prompt_tokens_details=PromptTokensDetails(0 if usage.timings is None else usage.timings.num_cached_tokens),
    )
