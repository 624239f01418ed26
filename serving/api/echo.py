"""Prompts that are sent back: before the answer, or (`max_tokens` 0) instead of it."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Literal

from serving.api.context import Stream
from serving.gateway.generation import ChoiceDelta, Usage


@dataclasses.dataclass(frozen=True, slots=True)
class Echo:
    """The prompts of a request, each of which begins `choices_each` of its texts; with their log probabilities, they
    wait for these."""

    prompts: tuple[str, ...]
    choices_each: int
    with_logprobs: bool

    def text_of(self, choice: int) -> str:
        """What the choice's text begins with."""
        return self.prompts[choice // self.choices_each]


class PromptOnlyStream(AsyncIterator[ChoiceDelta]):
    """Owns nothing: a request's stream without what was generated. An engine generates one token at least."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    async def started(self) -> None:
        """As the stream's own."""
        await self._stream.started()

    async def __anext__(self) -> ChoiceDelta:
        """What the next delta says of the prompt and of the end."""
        delta = await self._stream.__anext__()
        reason: Literal["length"] | None = None if delta.finish_reason is None else "length"
        entries = None if delta.logprobs is None else ()
        return dataclasses.replace(delta, text="", num_tokens=0, finish_reason=reason, logprobs=entries)

    async def aclose(self) -> None:
        """As the stream's own."""
        await self._stream.aclose()

    @property
    def num_ahead(self) -> int | None:
        """As the stream's own."""
        return self._stream.num_ahead

    @property
    def usage(self) -> Usage:
        """The prompt's tokens."""
        return dataclasses.replace(self._stream.usage, completion_tokens=0)
