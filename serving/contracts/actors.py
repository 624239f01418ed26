"""Who acts: a user of the console, an API key, the command line, or Footplate itself. Values only."""

from __future__ import annotations

from typing import Literal

import msgspec

ActorKind = Literal["user", "key", "command", "system"]


class Actor(msgspec.Struct, frozen=True):
    """Who does something. `name` is a user's name, `<tenant>, key <public prefix>`, `command line` or the part of
    Footplate that acts; `request_id` is of the API call by which it is done, `address` where that came from, both empty
    where there is none."""

    name: str
    kind: ActorKind
    request_id: str = ""
    address: str = ""


Author = Actor | str
"""Who changes something. A name alone is that of a user of the console."""

COMMAND_LINE = Actor("command line", "command")
"""Who does what nobody signed in for."""


def actor_of(author: Author) -> Actor:
    """The author as an actor."""
    return Actor(author, "user") if isinstance(author, str) else author


def name_of(author: Author) -> str:
    """The author's name, as versions keep it."""
    return actor_of(author).name
