"""Streams of answers that may call tools: what a model wrote as calls comes as calls."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import AsyncIterator, Iterable

from serving.api.context import Stream
from serving.api.tools import ToolUse
from serving.gateway.generation import ChoiceDelta, Usage
from serving.gateway.logprobs import TokenEntry
from serving.gateway.text.tool_calls import CallArguments, CallStart, Piece, Text, ToolCallParser


@dataclasses.dataclass(frozen=True, slots=True)
class CallPart:
    """A part of a call: the first one bears id and name, and all together bear the arguments."""

    index: int
    arguments: str
    call_id: str | None = None
    name: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class CallingDelta(ChoiceDelta):
    """What a delta adds to text and to calls. `stops_for_calls`, beside a finish reason, says that the answer ended for
    its calls to be made."""

    calls: tuple[CallPart, ...] = ()
    stops_for_calls: bool = False


@dataclasses.dataclass(slots=True)
class _Line:
    """One choice: what is being read of it, and the log probabilities and the number of tokens held back meanwhile."""

    parser: ToolCallParser
    entries: list[TokenEntry] = dataclasses.field(default_factory=list)
    num_tokens: int = 0


class ToolCallStream(AsyncIterator[ChoiceDelta]):
    """Owns what of each choice may yet become a call; used by whoever reads it. Bounded as the stream is.

    Ids of calls are a function of the request's, so that the same answer has the same ids, streamed or whole.
    """

    def __init__(self, stream: Stream, tool_use: ToolUse, *, request_id: str) -> None:
        self._stream = stream
        self._tool_use = tool_use
        self._request_id = request_id
        self._lines: dict[int, _Line] = {}

    async def started(self) -> None:
        """As the stream's own."""
        await self._stream.started()

    async def __anext__(self) -> ChoiceDelta:
        """The next delta of which something can be told."""
        while (told := self._read(await self._stream.__anext__())) is None:
            pass
        return told

    async def aclose(self) -> None:
        """As the stream's own."""
        await self._stream.aclose()

    @property
    def num_ahead(self) -> int | None:
        """As the stream's own."""
        return self._stream.num_ahead

    @property
    def usage(self) -> Usage:
        """As the stream's own: calls are generated like all text."""
        return self._stream.usage

    def _read(self, delta: ChoiceDelta) -> CallingDelta | None:
        line = self._line_of(delta.choice)
        pieces = line.parser.push(delta.text)
        if delta.finish_reason is not None:
            pieces += line.parser.finish()
        if self._tool_use.only_first:
            pieces = [piece for piece in pieces if isinstance(piece, Text) or piece.index == 0]
        line.entries += delta.logprobs or ()
        line.num_tokens += delta.num_tokens
        if not pieces and delta.finish_reason is None and delta.prompt is None:
            return None
        told = CallingDelta(
            delta.choice,
            "".join([piece.text for piece in pieces if isinstance(piece, Text)]),
            line.num_tokens,
            delta.finish_reason,
            None if delta.logprobs is None else tuple(line.entries),
            delta.prompt,
            calls=self._parts_of(delta.choice, pieces),
            stops_for_calls=delta.finish_reason == "stop" and line.parser.has_calls and not self._tool_use.is_named,
        )
        line.entries, line.num_tokens = [], 0
        return told

    def _line_of(self, choice: int) -> _Line:
        line = self._lines.get(choice)
        if line is None:
            parser = ToolCallParser(self._tool_use.call_format, self._tool_use.names)
            line = self._lines[choice] = _Line(parser)
        return line

    def _parts_of(self, choice: int, pieces: Iterable[Piece]) -> tuple[CallPart, ...]:
        """A part for each call that the pieces speak of."""
        parts: dict[int, CallPart] = {}
        for piece in pieces:
            if isinstance(piece, CallStart):
                parts[piece.index] = CallPart(piece.index, "", self._id_of(choice, piece.index), piece.name)
            elif isinstance(piece, CallArguments):
                known = parts.get(piece.index, CallPart(piece.index, ""))
                parts[piece.index] = dataclasses.replace(known, arguments=known.arguments + piece.text)
        return tuple(parts.values())

    def _id_of(self, choice: int, index: int) -> str:
        digest = hashlib.sha256(f"{self._request_id}/{choice}/{index}".encode()).hexdigest()
        # Mistral's templates refuse any other ids in what is sent back.
        return digest[:9] if self._tool_use.ids_are_short else f"call_{digest[:24]}"


def calls_together(deltas: Iterable[ChoiceDelta]) -> tuple[CallPart, ...]:
    """An answer's calls, whole."""
    whole: dict[int, CallPart] = {}
    for delta in deltas:
        for part in delta.calls if isinstance(delta, CallingDelta) else ():
            known = whole.get(part.index)
            arguments = part.arguments if known is None else known.arguments + part.arguments
            whole[part.index] = dataclasses.replace(known or part, arguments=arguments)
    return tuple(whole.values())
