"""Reading what another process, perhaps of another version, left in Redis."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import msgspec

T = TypeVar("T")


def decode_or_none(decode: Callable[[bytes], T], value: bytes | str | None) -> T | None:
    """The message, or None where there is none or none that this version understands."""
    try:
        return None if value is None else decode(cast("bytes", value))
    except msgspec.MsgspecError:
        return None
