"""The choice of an attention backend by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from serving.engine.attention.base import AttentionBackend, LayerAttention
from serving.engine.attention.torch_backend import TorchAttention
from serving.engine.kv_cache import KVCache


class _Make(Protocol):
    def __call__(self, cache: KVCache, *, num_heads: int, layers: Sequence[LayerAttention]) -> AttentionBackend: ...


def _make_triton(cache: KVCache, *, num_heads: int, layers: Sequence[LayerAttention]) -> AttentionBackend:
    try:
        from serving.engine.attention.triton_backend import TritonAttention  # a machine without a GPU lacks Triton
    except ModuleNotFoundError as error:
        if error.name != "triton":
            raise
        raise ValueError("attention backend triton needs the package triton, which is not installed") from None
    return TritonAttention(cache, num_heads=num_heads, layers=layers)


_BACKENDS: dict[str, _Make] = {"torch": TorchAttention, "triton": _make_triton}


def make_attention(name: str, cache: KVCache, *, num_heads: int, layers: Sequence[LayerAttention]) -> AttentionBackend:
    """The backend called `name`, over `cache`, whose layers attend as `layers` say; raises `ValueError` naming those
    there are."""
    make = _BACKENDS.get(name)
    if make is None:
        raise ValueError(f"attention backend {name!r} is not known; there are: {', '.join(_BACKENDS)}")
    return make(cache, num_heads=num_heads, layers=layers)
