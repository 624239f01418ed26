"""A prompt's log probabilities for all of its choices, of which the first alone has asked an engine for them."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import AsyncIterator

from serving.api.context import Stream
from serving.gateway.generation import ChoiceDelta, Usage
from serving.gateway.logprobs import PromptEntries


class SharedPromptStream(AsyncIterator[ChoiceDelta]):
    """Owns the text of choices whose prompt was not told of yet; used by whoever reads it.

    Of each `choices_each` choices, which have one prompt, the first brings what is told of it, and the first delta of
    every other gets the same. Bounded by the request itself, as the stream is.
    """

    def __init__(self, stream: Stream, *, choices_each: int) -> None:
        self._stream = stream
        self._choices_each = choices_each
        self._prompts: dict[int, PromptEntries] = {}
        self._begun: set[int] = set()
        self._held: dict[int, list[ChoiceDelta]] = {}
        self._ready: deque[ChoiceDelta] = deque()

    async def started(self) -> None:
        """As the stream's own."""
        await self._stream.started()

    async def __anext__(self) -> ChoiceDelta:
        """The next delta of a choice whose prompt is known."""
        while not self._ready:
            self._take(await self._stream.__anext__())
        return self._ready.popleft()

    async def aclose(self) -> None:
        """As the stream's own."""
        await self._stream.aclose()

    @property
    def num_ahead(self) -> int | None:
        """As the stream's own."""
        return self._stream.num_ahead

    @property
    def usage(self) -> Usage:
        """As the stream's own."""
        return self._stream.usage

    def _take(self, delta: ChoiceDelta) -> None:
        prompt = delta.choice // self._choices_each
        if delta.prompt is not None:
            self._prompts[prompt] = delta.prompt
        if prompt not in self._prompts:
            self._held.setdefault(prompt, []).append(delta)
            return
        for known in (delta, *self._held.pop(prompt, ())):
            is_first = known.choice not in self._begun
            self._begun.add(known.choice)
            told = self._prompts[prompt] if is_first else None
            self._ready.append(dataclasses.replace(known, prompt=told))
