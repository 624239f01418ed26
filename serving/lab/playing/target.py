"""Whom a workload is played against."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal
from urllib.parse import urlsplit

import msgspec

from serving.contracts.errors import InvalidValue

Prompts = Literal["tokens", "text", "chat"]
"""How prompts are sent: as ids of tokens to /v1/completions, which a Footplate takes with exact lengths; as text to
/v1/completions; or as a message to /v1/chat/completions, for servers that know no other."""

_LONGEST_URL = 500
LONGEST_TIMEOUT_SECONDS = 24 * 3600.0


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A server that speaks the OpenAI API. `key` is whom requests come from, `keys` those of some tenants; a tenant
    without one sends with `key`. `pool` is of a Footplate alone: which is to serve; empty leaves the choice to it. With
    prompts as text or chat, answers end where the model ends them, and lengths are near what the workload says:
    `ignore_eos` asks a server that knows the word to go on to the full length. `is_keyed` says that there were keys,
    where they were left out. A Footplate, as whoever has pools `is_footplate`, is asked how long a request waited."""

    url: str
    model: str
    key: str = ""
    keys: Mapping[str, str] = {}
    pool: str = ""
    prompts: Prompts = "tokens"
    ignore_eos: bool = True
    timeout_seconds: float = 3600.0
    is_keyed: bool = False
    is_footplate: bool = False

    def check(self) -> None:
        """Raise `InvalidValue`, naming field, value and bound, for a target that nobody can ask."""
        try:
            parts = urlsplit(self.url)
            is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            is_address = False
        if not is_address or len(self.url) > _LONGEST_URL:
            raise InvalidValue("url", self.url[:100], "an address that begins with http:// or https://")
        if not self.model:
            raise InvalidValue("model", self.model, "the name of a model")
        timeout = self.timeout_seconds
        if not math.isfinite(timeout) or not 0 < timeout <= LONGEST_TIMEOUT_SECONDS:
            raise InvalidValue("timeout", timeout, f"seconds, at most {LONGEST_TIMEOUT_SECONDS:g}")

    def key_of(self, tenant: str) -> str:
        """With which key a tenant's requests are sent."""
        return self.keys.get(tenant, self.key)

    def without_keys(self) -> Target:
        """The same, to be kept and shown."""
        return msgspec.structs.replace(self, key="", keys={}, is_keyed=bool(self.key or self.keys))
