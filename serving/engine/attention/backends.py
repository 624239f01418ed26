"""The choice of an attention backend by name."""

from __future__ import annotations

from collections.abc import Callable

from serving.engine.attention.base import AttentionBackend
from serving.engine.attention.torch_backend import TorchAttention
from serving.engine.kv_cache import KVCache


def _make_torch(cache: KVCache, num_heads: int) -> AttentionBackend:
    return TorchAttention(cache, num_heads=num_heads)


_BACKENDS: dict[str, Callable[[KVCache, int], AttentionBackend]] = {"torch": _make_torch}


def make_attention(name: str, cache: KVCache, *, num_heads: int) -> AttentionBackend:
    """The backend called `name`, over `cache`; raises `ValueError` naming those there are."""
    make = _BACKENDS.get(name)
    if make is None:
        raise ValueError(f"attention backend {name!r} is not known; there are: {', '.join(_BACKENDS)}")
    return make(cache, num_heads)
