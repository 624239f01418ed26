"""What a console page and its consumer say to each other over the websocket, in JSON.

The page speaks first, with `watch`, which it says once; it is answered with `hello` and `history`, and from then on
gets the frames that the monitor broadcasts, unchanged (`serving.telemetry.frames.LiveFrame`, type `frame`). Another
`hello` comes when its user's rights have changed. It acknowledges each frame that it has taken in. A command bears an
`id` of the page's choosing, and is answered by exactly one message with that id, on this socket alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import msgspec

from serving.contracts.guardrails import GuardrailTerms
from serving.contracts.tunables import TunableSpec

T = TypeVar("T")

LONGEST_MESSAGE_BYTES = 65_536
NUM_VERSIONS = 20
"""Versions that a page is told of at once."""

# Close codes of our own; 4400 to 4499 read like the HTTP status of the same last digits.
BAD_MESSAGE = 4400
SIGNED_OUT = 4401
NOT_ALLOWED = 4403
NO_SUCH_POOL = 4404
TOO_SLOW = 4408
FAILED = 1011
"""Something went wrong here that nobody foresaw: the page connects again."""
RESTARTING = 1012
"""The process stops: the page connects again, to another or to its successor."""

# JavaScript counts no further.
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**53 - 1)]
_Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]

# --- from the page -------------------------------------------------------------------------------------------------


class Watch(msgspec.Struct, frozen=True, tag="watch", forbid_unknown_fields=True):
    """Begin; once a connection. `since` (Redis's time in seconds, of the last point that the page has) shortens the
    history."""

    since: _Seconds | None = None


class Ack(msgspec.Struct, frozen=True, tag="ack", forbid_unknown_fields=True):
    """The page has taken in the frames up to this sequence number."""

    sequence: _Number


class Change(msgspec.Struct, frozen=True, tag="change", forbid_unknown_fields=True):
    """Change tunables. `based_on` is the version that the operator saw when they began. The change may go back by
    itself (`guardrail`), and run on one engine first (`canary`): on `canary_engine`, where one is chosen."""

    id: _Number
    changes: dict[str, Any]
    based_on: _Number
    reason: str = ""
    guardrail: GuardrailTerms | None = None
    canary: bool = False
    canary_engine: str | None = None


class RollBack(msgspec.Struct, frozen=True, tag="roll_back", forbid_unknown_fields=True):
    """Make a new version equal to `version`. `based_on` is the version that the operator saw in force."""

    id: _Number
    version: _Number
    based_on: _Number
    reason: str = ""


class ListVersions(msgspec.Struct, frozen=True, tag="list_versions", forbid_unknown_fields=True):
    """The newest versions, for a page that hears of one it does not know."""

    id: _Number


ClientMessage = Watch | Ack | Change | RollBack | ListVersions

# --- to the page ---------------------------------------------------------------------------------------------------


class VersionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One stored version. `changes` is `{name: [old, new]}`; `created_at` is ISO 8601, UTC."""

    number: int
    values: dict[str, Any]
    changes: dict[str, Any]
    reason: str
    author: str
    created_at: str


class Hello(msgspec.Struct, frozen=True, tag="hello", kw_only=True):
    """What the page needs to read all that follows, and what its user may do. `versions` are the newest, newest
    first."""

    pool: str
    model: str
    user: str
    may_steer: bool
    point_fields: tuple[str, ...]
    windows_seconds: tuple[int, ...]
    interval_names: tuple[str, ...]
    percentiles: tuple[int, ...]
    tunables: tuple[TunableSpec, ...]
    versions: list[VersionInfo]


class History(msgspec.Struct, frozen=True, tag="history", kw_only=True):
    """Points of the last 15 minutes (those after `since`, where `watch` named one), oldest first, one a second."""

    points: list[msgspec.Raw]


class Versions(msgspec.Struct, frozen=True, tag="versions", kw_only=True):
    """Answers `list_versions`: the newest, newest first."""

    id: int
    versions: list[VersionInfo]


class Stored(msgspec.Struct, frozen=True, tag="stored", kw_only=True):
    """Answers `change` and `roll_back`: the new version is in the database and announced."""

    id: int
    version: VersionInfo


class Refused(msgspec.Struct, frozen=True, tag="refused", kw_only=True):
    """Answers any command. `code` and `param` as in the API's errors; with `stale_version`, `newer` are the versions
    stored after `based_on`, newest first."""

    id: int
    code: str
    message: str
    param: str | None = None
    newer: list[VersionInfo] = []


ServerMessage = Hello | History | Versions | Stored | Refused

encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ClientMessage).decode


class BadMessage(Exception):
    """What the page sent is no message; the text says why."""


def read_message(text: str | None) -> ClientMessage:
    """One message of the page's (None where it was binary). Raises `BadMessage`."""
    return read_with(_decode, text)


def read_with(decode: Callable[[bytes], T], text: str | None) -> T:
    """One message of a page's, read by the decoder of its socket's messages. Raises `BadMessage`."""
    if text is None:
        raise BadMessage("messages are text")
    encoded = text.encode("utf-8", "replace")
    if len(encoded) > LONGEST_MESSAGE_BYTES:
        raise BadMessage(f"a message has at most {LONGEST_MESSAGE_BYTES} bytes")
    try:
        return decode(encoded)
    except (ValueError, RecursionError) as error:
        raise BadMessage(str(error)) from None
