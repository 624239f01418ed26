"""Steps that are kept to fit from: the latest of every kind, so that what is seen often crowds out nothing else.

A reservoir with strata, each a ring of its own (compare Thompson 2012, "Sampling", chapter 11). Pure functions.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

import msgspec

from serving.lab.costs.fitting import Sample

Kind = tuple[int, int, int]

MOST_SAMPLES: Final = 6000
MOST_OF_A_KIND: Final = 60
LEAST_OF_A_KIND: Final = 4
"""Fewer of a kind tell nothing yet: what they took may be chance."""


class Stock(msgspec.Struct, frozen=True, array_like=True):
    """Samples of steps by their kinds, each kind's the oldest first; at most `MOST_SAMPLES` over all."""

    strata: tuple[tuple[Sample, ...], ...] = ()

    @property
    def samples(self) -> list[Sample]:
        """All of them, kind after kind."""
        return [sample for stratum in self.strata for sample in stratum]

    @property
    def num_kinds(self) -> int:
        """How many kinds of steps were seen often enough to tell of them."""
        return sum(len(stratum) >= LEAST_OF_A_KIND for stratum in self.strata)


def kind_of(sample: Sample) -> Kind:
    """Steps of one kind differ by less than a factor of 2 in how many sequences decode, and of 4 in the tokens of
    prefill and in how far their tokens look back on average."""
    num_rows = sample.num_prefill_tokens + sample.num_decoding
    reach = (sample.num_prefill_positions + sample.num_context_tokens) // max(1, num_rows)
    return _magnitude(sample.num_decoding), _magnitude(sample.num_prefill_tokens, 2), _magnitude(reach, 2)


def add_samples(stock: Stock, new: Iterable[Sample]) -> Stock:
    """The stock with these, which are newer than all that it has; of each kind the oldest go first."""
    kinds: dict[Kind, list[Sample]] = {kind_of(stratum[0]): list(stratum) for stratum in stock.strata}
    for sample in new:
        kinds.setdefault(kind_of(sample), []).append(sample)
    if not kinds:
        return Stock()
    room = min(MOST_OF_A_KIND, MOST_SAMPLES // len(kinds))
    return Stock(tuple(tuple(kinds[kind][-room:]) for kind in sorted(kinds)))


def pack_stock(stock: Stock) -> bytes:
    """A stock as a row keeps it."""
    return zlib.compress(msgspec.msgpack.encode(stock), 6)


def unpack_stock(packed: bytes) -> Stock:
    """A stock that a row kept."""
    return msgspec.msgpack.decode(zlib.decompress(packed), type=Stock)


def _magnitude(count: int, bits: int = 1) -> int:
    return -(-count.bit_length() // bits)
