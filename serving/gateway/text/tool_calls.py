"""Calls of tools in a model's text: how templates have models write them, read while they come."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Collection, Generator, Iterable
from typing import Literal

ToolCallFormat = Literal["hermes", "llama", "mistral"]
"""`hermes`: `<tool_call>{"name": …, "arguments": {…}}</tool_call>` anywhere in a text, as Hermes and Qwen write it.
`llama`: the text is nothing but `{"name": …, "parameters": {…}}`, or several parted by `;`, as Llama 3 writes it.
`mistral`: `[TOOL_CALLS][{"name": …, "arguments": {…}}, …]`. Its tag is a special token, which no text shows: a text
that begins with the list alone counts too."""

_OPENERS: dict[ToolCallFormat, str] = {"hermes": "<", "llama": "{", "mistral": "["}
_ARGUMENT_KEYS = frozenset({"arguments", "parameters"})
_HEAD_KEYS = frozenset({"id", "type"})
_LONGEST_PLAIN_STRING = 64
_LONGEST_HEAD = 512
"""What may be a call is held back for so many characters until its arguments begin."""
_LONGEST_HELD = 65_536
"""Arguments before the name that says whose they are have to be held back as well, up to here."""


@dataclasses.dataclass(frozen=True, slots=True)
class Text:
    """Text that is part of no call."""

    text: str


@dataclasses.dataclass(frozen=True, slots=True)
class CallStart:
    """A call begins; an answer's calls are numbered from 0."""

    index: int
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments: together they are the object that the model wrote, letter by letter."""

    index: int
    text: str


Piece = Text | CallStart | CallArguments
_Reading = Generator[None, str, bool]
"""Takes a character at each `send`; returns whether they were what was looked for."""


class ToolCallParser:
    """Owns what was read of one answer and cannot be told yet; used by whoever owns the answer.

    What `push` and the final `finish` tell is in sum the same however the text is cut. A call names one of `names` and
    has an object of arguments; what only looks like a call stays text, letter by letter. White space between text and
    calls belongs to neither and is left out. A call that breaks off is told as far as it goes, once its name and the
    beginning of its arguments are there.
    """

    def __init__(self, format_: ToolCallFormat, names: Collection[str]) -> None:
        self._format = format_
        self._names = frozenset(names)
        self._pieces: list[Piece] = []
        self._space: list[str] = []
        """White space after which nothing has come yet."""
        self._held: list[str] = []
        """What was read since the last piece and may belong to a call."""
        self._reading: _Reading | None = None
        self._longest_held = _LONGEST_HEAD
        self._is_closing = False
        """Whether a call was told whose end has not been read."""
        self._has_text = False
        self._num_calls = 0

    @property
    def has_calls(self) -> bool:
        """Whether any call has begun."""
        return self._num_calls > 0

    def push(self, text: str) -> list[Piece]:
        """Read on; returns what can be told by now."""
        for character in text:
            self._take(character)
        return self._give()

    def finish(self) -> list[Piece]:
        """What is left where the text ends. No `push` may follow."""
        held, self._held, self._reading = "".join(self._held), [], None
        if not self._is_closing:  # half an end of a call that was told is no text
            self._tell_text(held)
        if not self.has_calls:
            self._pieces.append(Text("".join(self._space)))
        return self._give()

    def _take(self, character: str) -> None:
        if self._reading is not None:
            self._read_on(self._reading, character)
        elif character == _OPENERS[self._format] and not (self._format == "llama" and self._has_text):
            self._held = [character]
            self._begin()
        elif character.isspace():
            self._space.append(character)
        else:
            self._tell_text(character)

    # --- what may be a call ---

    def _begin(self) -> None:
        readers = {"hermes": self._read_tagged, "llama": self._read_bare, "mistral": self._read_list}
        self._longest_held = _LONGEST_HEAD
        self._reading = readers[self._format]()
        next(self._reading)

    def _read_on(self, reading: _Reading, character: str) -> None:
        self._held.append(character)
        if len(self._held) > self._longest_held:
            self._release()
            return
        try:
            reading.send(character)
        except StopIteration as end:
            if end.value:
                self._held, self._reading, self._is_closing = [], None, False
            else:
                self._release()

    def _release(self) -> None:
        """What is held is no call: it begins as text, and what follows is looked at anew, if it is not too much."""
        held, self._held, self._reading, self._is_closing = self._held, [], None, False
        num_told = 1 if len(held) <= _LONGEST_HEAD else len(held)
        first = "".join(held[:num_told])
        if first.isspace():
            self._space.append(first)
        else:
            self._tell_text(first)
        for character in held[num_told:]:
            self._take(character)

    def _read_tagged(self) -> _Reading:
        if not (yield from _literal("tool_call>")) or (yield from _after_space()) != "{":
            return False
        if not (yield from self._read_call()):
            return False
        return (yield from _after_space()) == "<" and (yield from _literal("/tool_call>"))

    def _read_bare(self) -> _Reading:
        while (yield from self._read_call()):
            following = yield from _after_space()
            if following == ";":
                following = yield from _after_space()
            if following != "{":
                return False
        return False

    def _read_list(self) -> _Reading:
        following = yield from _after_space()
        if following == "T":
            if not (yield from _literal("OOL_CALLS]")) or (yield from _after_space()) != "[":
                return False
            following = yield from _after_space()
        elif self._has_text or self.has_calls:
            return False
        while following == "{" and (yield from self._read_call()):
            following = yield from _after_space()
            if following == "]":
                return True
            if following == ",":
                following = yield from _after_space()
        return False

    def _read_call(self) -> _Reading:
        """An object whose brace was read: a name, arguments and, if there are any, other texts, in any order. One of
        nothing but a name is a call without arguments."""
        self._is_closing = False
        name: str | None = None
        arguments: str | None = None
        has_others = False
        following = yield from _after_space()
        while following != "}":
            key = (yield from _plain_string()) if following == '"' else None
            if key is None or (yield from _after_space()) != ":":
                return False
            value = yield from _after_space()
            if key == "name" and name is None and value == '"':
                name = yield from _plain_string()
                if name not in self._names or name is None:
                    return False
                if arguments is not None:
                    self._tell_start(name)
                    self._tell_arguments(arguments)
            elif key in _ARGUMENT_KEYS and arguments is None and value == "{":
                arguments = yield from self._read_arguments(name)
            elif key in _ARGUMENT_KEYS or value != '"' or (yield from _plain_string()) is None:
                return False
            else:
                has_others = has_others or key not in _HEAD_KEYS
            following = yield from _after_space()
            if following == ",":
                following = yield from _after_space()
            elif following != "}":
                return False
        if name is None or (arguments is None and has_others):
            return False
        if arguments is None:
            self._tell_start(name)
            self._tell_arguments("{}")
        self._close()
        return True

    def _read_arguments(self, name: str | None) -> Generator[None, str, str]:
        """An object whose brace was read, told at once where its name is known."""
        if name is not None:
            self._tell_start(name)
            self._tell_arguments("{")
            yield from _object(self._tell_arguments)
            self._close()
            return ""
        self._longest_held = _LONGEST_HELD
        parts = ["{"]
        yield from _object(parts.append)
        return "".join(parts)

    def _close(self) -> None:
        self._held, self._is_closing, self._longest_held = [], True, _LONGEST_HEAD

    # --- what is told ---

    def _tell_text(self, text: str) -> None:
        if text:
            self._pieces.append(Text("".join([*self._space, text])))
            self._space = []
            self._has_text = True

    def _tell_start(self, name: str) -> None:
        self._pieces.append(CallStart(self._num_calls, name))
        self._num_calls += 1
        self._held, self._space = [], []

    def _tell_arguments(self, text: str) -> None:
        self._pieces.append(CallArguments(self._num_calls - 1, text))
        self._held = []

    def _give(self) -> list[Piece]:
        pieces, self._pieces = self._pieces, []
        return join_pieces(pieces)


def join_pieces(pieces: Iterable[Piece]) -> list[Piece]:
    """Neighbours of one kind as one piece; empty ones left out."""
    joined: list[Piece] = []
    for kind, group in itertools.groupby(pieces, key=lambda piece: (type(piece), getattr(piece, "index", None))):
        if kind[0] is CallStart:
            joined += group
            continue
        text = "".join([piece.text for piece in group if not isinstance(piece, CallStart)])
        if text:
            joined.append(Text(text) if kind[1] is None else CallArguments(kind[1], text))
    return joined


def _literal(text: str) -> _Reading:
    for expected in text:
        if (yield) != expected:
            return False
    return True


def _after_space() -> Generator[None, str, str]:
    """The next character that is no white space."""
    while True:
        character = yield
        if not character.isspace():
            return character


def _plain_string() -> Generator[None, str, str | None]:
    """A string whose quote was read; None for one that is long, or has escapes."""
    found: list[str] = []
    while (character := (yield)) != '"':
        if character == "\\" or len(found) >= _LONGEST_PLAIN_STRING:
            return None
        found.append(character)
    return "".join(found)


def _object(take: Callable[[str], None]) -> Generator[None, str, None]:
    """The rest of an object whose brace was read, up to the brace that closes it; braces in strings count for
    nothing."""
    depth, in_string, is_escaped = 1, False, False
    while depth:
        character = yield
        take(character)
        if is_escaped:
            is_escaped = False
        elif in_string:
            is_escaped, in_string = character == "\\", character != '"'
        elif character == '"':
            in_string = True
        else:
            depth += {"{": 1, "}": -1}.get(character, 0)
