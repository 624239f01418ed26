"""On what something was measured: results hold for as long as this does. Blocking where Redis is asked."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from redis import Redis

from serving.contracts.ids import PoolName
from serving.tuning.living import living_engines

_WORDS: Final = {
    "model": "model",
    "device": "device",
    "dtype": "weights",
    "backend": "backend",
    "max_model_len": "context limit",
    "kv_blocks": "KV blocks",
    "num_engines": "engines",
}


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """A pool's engines, as far as figures depend on them; empty where none lived."""

    model: str = ""
    device: str = ""
    dtype: str = ""
    backend: str = ""
    max_model_len: int = 0
    kv_blocks: int = 0
    num_engines: int = 0


def read_fingerprint(redis: Redis, pool: str) -> Fingerprint:
    """The pool as it is now. Raises `Unavailable` where Redis is out of reach."""
    engines = living_engines(redis, PoolName(pool))
    if not engines:
        return Fingerprint()
    return Fingerprint(
        model=_together(engine.model for engine in engines),
        device=_together(engine.device for engine in engines),
        dtype=_together(engine.dtype for engine in engines),
        backend=_together(engine.backend for engine in engines),
        max_model_len=min(engine.max_model_len for engine in engines),
        kv_blocks=sum(engine.kv_blocks_total for engine in engines),
        num_engines=len(engines),
    )


def decode_fingerprint(content: Any) -> Fingerprint:
    """A fingerprint that was kept, be it with fewer fields or more."""
    return msgspec.convert(content, type=Fingerprint)


def differences(old: Fingerprint, new: Fingerprint) -> tuple[str, ...]:
    """What differs, in words; nothing where either knows of no engine."""
    if not old.num_engines or not new.num_engines:
        return ()
    return tuple(
        f"{words}: {getattr(old, name)} → {getattr(new, name)}"
        for name, words in _WORDS.items()
        if getattr(old, name) != getattr(new, name)
    )


def _together(values: Any) -> str:
    return ", ".join(sorted(set(values)))
