"""Log probabilities in OpenAI's shapes (and, for prompts, in vLLM's)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from serving.gateway.logprobs import Candidate, TokenEntry
from serving.gateway.text.token_spelling import Spelling


class TopLogprob(msgspec.Struct, frozen=True):
    """A token that could have stood at a place. `bytes` is null where the token adds nothing to a text."""

    token: str
    logprob: float
    bytes: list[int] | None


class ContentLogprob(msgspec.Struct, frozen=True):
    """A token of a message."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """The tokens of a message, or of a chunk's part of it."""

    content: list[ContentLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """The tokens of a text, list by list. Of a prompt's first token there is no probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class PromptLogprob(msgspec.Struct, frozen=True):
    """A token at a prompt's place. `rank` counts from 1; null for the prompt's own where it is not among the asked."""

    logprob: float
    rank: int | None
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""For each token of a prompt, by token id: the token itself and the most probable ones; null for the first."""


def chat_logprobs(entries: Iterable[TokenEntry]) -> ChatLogprobs:
    """A message's entries, in order."""
    return ChatLogprobs(
        [
            ContentLogprob(
                entry.spelling.name,
                _known(entry),
                _bytes_of(entry.spelling),
                [TopLogprob(top.spelling.name, top.logprob, _bytes_of(top.spelling)) for top in entry.top],
            )
            for entry in entries
        ]
    )


def completion_logprobs(entries: Sequence[TokenEntry], *, offset: int = 0) -> CompletionLogprobs:
    """A text's entries, in order; the text begins `offset` characters after the one that is shown (an echo's length).

    As OpenAI has it, a place's most probable tokens always include the one that stands there.
    """
    return CompletionLogprobs(
        tokens=[entry.spelling.name for entry in entries],
        token_logprobs=[entry.logprob for entry in entries],
        top_logprobs=[_top_by_name(entry) for entry in entries],
        text_offset=[offset + entry.text_offset for entry in entries],
    )


def echoed_logprobs(entries: Sequence[TokenEntry], text: str) -> CompletionLogprobs:
    """A prompt's entries, where `text` is the prompt as it was sent: there, special tokens may stand written out."""
    found = completion_logprobs(entries)
    offsets = []
    place = 0
    for entry in entries:
        offsets.append(place)
        is_written = entry.spelling.text_bytes is None and text.startswith(entry.spelling.name, place)
        place += len(entry.spelling.name) if is_written else entry.text_length
    return msgspec.structs.replace(found, text_offset=offsets)


def joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    """One after the other."""
    return CompletionLogprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        first.top_logprobs + second.top_logprobs,
        first.text_offset + second.text_offset,
    )


def prompt_logprobs(entries: Iterable[TokenEntry]) -> PromptLogprobs:
    """A prompt's entries, in order."""
    return [None if entry.logprob is None else _by_id(entry, entry.logprob) for entry in entries]


def _by_id(entry: TokenEntry, logprob: float) -> dict[str, PromptLogprob]:
    found = {
        str(top.token_id): PromptLogprob(top.logprob, rank, top.spelling.name)
        for rank, top in enumerate(entry.top, start=1)
    }
    found.setdefault(str(entry.token_id), PromptLogprob(logprob, None, entry.spelling.name))
    return found


def _top_by_name(entry: TokenEntry) -> dict[str, float] | None:
    if entry.logprob is None:
        return None
    own = Candidate(entry.token_id, entry.spelling, entry.logprob)
    found: dict[str, float] = {}
    for candidate in (*entry.top, own):
        found.setdefault(candidate.spelling.name, candidate.logprob)
    return found


def _bytes_of(spelling: Spelling) -> list[int] | None:
    return None if spelling.text_bytes is None else list(spelling.text_bytes)


def _known(entry: TokenEntry) -> float:
    assert entry.logprob is not None, "only a prompt's first token has no probability"
    return entry.logprob
