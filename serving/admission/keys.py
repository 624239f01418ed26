"""The text of API keys: `fp-<public prefix>-<256 secret bits>`. Pure functions."""

from __future__ import annotations

import dataclasses
import hashlib
import re
import secrets

SCOPES = ("generate", "batch", "observe", "operate", "admin")
"""What a key may be good for. None implies another."""
OFFERED_SCOPES = tuple(scope for scope in SCOPES if scope != "batch")
"""Those that open something at present: nothing asks for `batch`."""

_PREFIX_BYTES = 6
_SECRET_BYTES = 32
_PATTERN = re.compile(r"fp-(?P<prefix>[0-9a-f]{12})-[A-Za-z0-9_-]{43}")
_LONGEST_HEADER = 200


@dataclasses.dataclass(frozen=True, slots=True)
class KeyText:
    """A key as its holder knows it. Its `repr` shows the public prefix only, so that no log can tell the rest."""

    prefix: str
    text: str = dataclasses.field(repr=False)

    @property
    def digest(self) -> str:
        """SHA-256 of the text in hex: enough for a secret of 256 random bits."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def make_key() -> KeyText:
    """A new key from the operating system's randomness."""
    prefix = secrets.token_hex(_PREFIX_BYTES)
    return KeyText(prefix, f"fp-{prefix}-{secrets.token_urlsafe(_SECRET_BYTES)}")


def read_bearer(authorization: str | None) -> KeyText | None:
    """The key in an `Authorization` header; None where there is none that could be one."""
    if authorization is None or len(authorization) > _LONGEST_HEADER:
        return None
    scheme, _, text = authorization.strip().partition(" ")
    match = _PATTERN.fullmatch(text.strip())
    if scheme.lower() != "bearer" or match is None:
        return None
    return KeyText(match["prefix"], match[0])
