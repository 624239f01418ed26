"""Texts that people send and others read. Pure functions."""

from __future__ import annotations

import re

_SECRET = re.compile(r"(fp-[0-9a-f]{12}-)[A-Za-z0-9_-]+")
"""An API key, whole or cut off, by its public part and what follows."""


def without_secrets(text: str) -> str:
    """`text` with the secret part of every API key in it left out: for what repeats someone's words."""
    return _SECRET.sub(r"\1…", text)


def is_storable(text: str, *, longest: int) -> bool:
    """Whether a text of at most `longest` characters may be stored and shown: with neither NUL, which PostgreSQL does
    not store, nor an API key, which somebody pasted by mistake."""
    return len(text) <= longest and "\0" not in text and _SECRET.search(text) is None
