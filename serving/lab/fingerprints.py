"""On what something was measured: results hold for as long as this does. Blocking where Redis is asked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import msgspec
from redis import Redis

from serving.contracts.errors import Unavailable
from serving.contracts.ids import PoolName
from serving.contracts.messages import EngineSnapshot
from serving.tuning.living import living_engines

_WORDS: Final[Mapping[str, str]] = {
    "model": "model",
    "device": "device",
    "processor": "processor",
    "num_threads": "threads",
    "dtype": "weights",
    "backend": "backend",
    "max_model_len": "context limit",
    "max_step_tokens": "largest step",
    "kv_blocks": "KV blocks",
    "num_engines": "engines",
    "footplate_version": "Footplate",
    "torch_version": "PyTorch",
}
LENGTHS: Final = ("model", "max_model_len")
"""What lengths in tokens depend on: whose tokens they are, and how many of them are let in."""


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """A pool's engines, as far as figures depend on them; empty where none lived. `processor` is the processor's or
    accelerator's name, `num_threads` those of an engine (0: an accelerator computes, or it is not known),
    `max_step_tokens` the largest step that there is memory for (0: any). Where engines differ, names stand beside each
    other, and of a size the smallest counts."""

    model: str = ""
    device: str = ""
    processor: str = ""
    num_threads: int = 0
    dtype: str = ""
    backend: str = ""
    max_model_len: int = 0
    max_step_tokens: int = 0
    kv_blocks: int = 0
    num_engines: int = 0
    footplate_version: str = ""
    torch_version: str = ""


def read_fingerprint(redis: Redis, pool: str) -> Fingerprint:
    """The pool as it is now. Raises `Unavailable` where Redis is out of reach."""
    engines = living_engines(redis, PoolName(pool))
    return _of(engines) if engines else Fingerprint()


def glimpse_fingerprint(redis: Redis, pool: str) -> Fingerprint:
    """The pool as it is now; empty where no engine lives and where nobody can tell, as Redis is out of reach."""
    try:
        return read_fingerprint(redis, pool)
    except Unavailable:
        return Fingerprint()


def decode_fingerprint(content: Any) -> Fingerprint:
    """A fingerprint that was kept, be it with fewer fields or more."""
    return msgspec.convert(content, type=Fingerprint)


def differences(old: Fingerprint, new: Fingerprint, *, of: Collection[str] = tuple(_WORDS)) -> tuple[str, ...]:
    """What differs, in words, among the fields that are named; nothing where either knows of no engine. What one of
    both does not know is no difference: it was kept by an older version, or told by an older engine."""
    if not old.num_engines or not new.num_engines:
        return ()
    pairs = {name: (getattr(old, name), getattr(new, name)) for name in _WORDS if name in of}
    return tuple(
        f"{_WORDS[name]}: {_shown(before)} → {_shown(after)}"
        for name, (before, after) in pairs.items()
        if before and after and before != after
    )


def is_stale(old: Fingerprint, new: Fingerprint) -> bool:
    """Whether what was measured on the old no longer tells of the new."""
    return bool(differences(old, new))


def differences_now(kept: Mapping[str, Any], *, redis: Redis, pool: str) -> tuple[str, ...]:
    """What differs, in words, between a fingerprint as it was kept and the pool now; nothing where nobody can tell."""
    return differences(decode_fingerprint(kept), glimpse_fingerprint(redis, pool))


def in_words(fingerprint: Fingerprint) -> tuple[tuple[str, str], ...]:
    """What is known, each by its name."""
    return tuple(
        (words, _shown(getattr(fingerprint, name))) for name, words in _WORDS.items() if getattr(fingerprint, name)
    )


def _of(engines: list[EngineSnapshot]) -> Fingerprint:
    builds = [engine.build for engine in engines]
    steps = [engine.max_step_tokens for engine in engines if engine.max_step_tokens]
    return Fingerprint(
        model=_together(engine.model for engine in engines),
        device=_together(engine.device for engine in engines),
        processor=_together(build.processor for build in builds),
        num_threads=min(build.num_threads for build in builds),
        dtype=_together(engine.dtype for engine in engines),
        backend=_together(engine.backend for engine in engines),
        max_model_len=min(engine.max_model_len for engine in engines),
        max_step_tokens=min(steps) if steps else 0,
        kv_blocks=sum(engine.kv_blocks_total for engine in engines),
        num_engines=len(engines),
        footplate_version=_together(build.footplate_version for build in builds),
        torch_version=_together(build.torch_version for build in builds),
    )


def _together(values: Iterable[str]) -> str:
    return ", ".join(sorted({value for value in values if value}))


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)
