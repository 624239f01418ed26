"""Several prompts in one request: their streams as one."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence

from serving.api.context import Stream
from serving.gateway.generation import ChoiceDelta, Usage, timings_together


class MergedStream(AsyncIterator[ChoiceDelta]):
    """Owns one reading task a stream, on the event loop; gives what comes first, with choices numbered through.

    The choices of the first stream come first, each stream having `choices_each`. The first failure is the failure of
    all. Bounded by its streams' own bounds.
    """

    def __init__(self, streams: Sequence[Stream], *, choices_each: int) -> None:
        self._streams = streams
        self._choices_each = choices_each
        self._ready: asyncio.Queue[ChoiceDelta | BaseException | None] = asyncio.Queue()
        self._num_open = len(streams)
        self._readers = [asyncio.create_task(self._read(index)) for index in range(len(streams))]

    async def started(self) -> None:
        """Return once the first of the streams was scheduled; raise what ended one before."""
        waiting = [asyncio.ensure_future(stream.started()) for stream in self._streams]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def __anext__(self) -> ChoiceDelta:
        """The next text of any stream."""
        while self._num_open > 0:
            item = await self._ready.get()
            if isinstance(item, BaseException):
                self._num_open = 0
                raise item
            if item is not None:
                return item
            self._num_open -= 1
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End all streams. Idempotent."""
        for reader in self._readers:
            reader.cancel()
        for stream in self._streams:
            await stream.aclose()

    @property
    def num_ahead(self) -> int | None:
        """That of the stream which is to be served first."""
        return min((stream.num_ahead for stream in self._streams if stream.num_ahead is not None), default=None)

    @property
    def usage(self) -> Usage:
        """Tokens of all streams together."""
        usages = [stream.usage for stream in self._streams]
        return Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in usages),
            completion_tokens=sum(usage.completion_tokens for usage in usages),
            timings=timings_together(usage.timings for usage in usages if usage.timings is not None),
            num_cached_tokens=sum(usage.num_cached_tokens for usage in usages),
        )

    async def _read(self, index: int) -> None:
        try:
            async for delta in self._streams[index]:
                choice = index * self._choices_each + delta.choice
                self._ready.put_nowait(dataclasses.replace(delta, choice=choice))
            self._ready.put_nowait(None)
        except Exception as error:
            self._ready.put_nowait(error)
