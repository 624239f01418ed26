"""A run's requests as a row keeps them. Pure functions."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import msgspec

from serving.lab.summaries import Outcome


def pack_outcomes(outcomes: Sequence[Outcome]) -> bytes:
    """Requests as a row keeps them."""
    return zlib.compress(msgspec.msgpack.encode(outcomes), 6)


def unpack_outcomes(packed: bytes) -> list[Outcome]:
    """Requests that a row kept."""
    return msgspec.msgpack.decode(zlib.decompress(packed), type=list[Outcome])
