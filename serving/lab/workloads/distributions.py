"""How long prompts and answers are: distributions of whole numbers of tokens."""

from __future__ import annotations

from typing import Annotated

import msgspec

MAX_TOKENS = 1_000_000
"""The longest length that a distribution may name."""

Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_TOKENS)]


class Fixed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="fixed"):
    """Always the same length."""

    tokens: Tokens


class Uniform(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="uniform"):
    """Any length from `low` to `high`, both included."""

    low: Tokens
    high: Tokens


class LogNormal(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="lognormal"):
    """exp(normal): `median` tokens, and `sigma` the deviation of the logarithm; what falls outside `low` to `high` is
    put at the nearer end."""

    median: float
    sigma: float
    low: Tokens = 1
    high: Tokens = MAX_TOKENS


class Histogram(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="histogram"):
    """What was counted: `counts[i]` lengths from `edges[i]` to `edges[i + 1]` - 1, each as likely as the others of its
    bin. One edge more than counts, rising."""

    edges: tuple[int, ...]
    counts: tuple[int, ...]


Lengths = Fixed | Uniform | LogNormal | Histogram
"""A distribution of lengths in tokens."""
