"""What a Steps page and its consumer say to each other over the websocket, in JSON.

The page speaks first, with `watch`, which it says once; it is answered with `hello` and, where there is an engine, the
engine's latest `steps`, and from then on gets steps as they are published. It acknowledges each message of steps that
it has taken in; one that takes them in late is sent fewer, and sees a hole in their numbers. `engines` comes every few
seconds, so that a page whose engine rests knows that the line does not.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from dashboard.protocol import Ack, read_with

# JavaScript counts no further.
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
_EngineName = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


class WatchSteps(msgspec.Struct, frozen=True, tag="watch", forbid_unknown_fields=True):
    """Begin; once a connection. `engine` is the one to watch (None: the first that lives), `after` the number of the
    last of its steps that the page has."""

    engine: _EngineName | None = None
    after: _Number = 0


class EngineInfo(msgspec.Struct, frozen=True):
    """An engine that lives."""

    engine_id: str
    name: str


class StepsHello(msgspec.Struct, frozen=True, tag="hello", kw_only=True):
    """What the page needs to read all that follows. `engine` is the one that it is shown; None where none lives."""

    pool: str
    engine: str | None
    engines: list[EngineInfo]
    row_fields: tuple[str, ...]


class Steps(msgspec.Struct, frozen=True, tag="steps", kw_only=True):
    """Batches of steps (see `serving.contracts.steps`), the oldest first. `sequence` numbers such messages from 1 in
    each connection; the first holds what there was."""

    sequence: int
    batches: list[msgspec.Raw]


class Engines(msgspec.Struct, frozen=True, tag="engines", kw_only=True):
    """The engines that live now, or did when that was last known."""

    engines: list[EngineInfo]


StepsMessage = StepsHello | Steps | Engines

encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(WatchSteps | Ack).decode


def read_message(text: str | None) -> WatchSteps | Ack:
    """One message of the page's (None where it was binary). Raises `BadMessage`."""
    return read_with(_decode, text)
