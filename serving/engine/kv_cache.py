"""Keys and values of every position that live sequences hold."""

from __future__ import annotations

import math

import torch

from serving.engine.models.config import ModelConfig

BLOCK_SIZE = 16
"""Positions a block holds."""
MIN_BLOCKS = 4
"""A pool below this holds no conversation worth the name: surely a mistaken setting."""


class KVCacheProblem(Exception):
    """The KV cache cannot be made with the memory that was set for it; the message says what would do."""


def block_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Memory of one block: keys and values of `BLOCK_SIZE` positions in every layer."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * BLOCK_SIZE * dtype.itemsize


def blocks_for(num_bytes: int, size: int) -> int:
    """How many blocks of `size` bytes fit `num_bytes`. Raises `KVCacheProblem` for fewer than `MIN_BLOCKS`."""
    num_blocks = num_bytes // size
    if num_blocks < MIN_BLOCKS:
        raise KVCacheProblem(
            f"a KV cache of {num_bytes} bytes holds {num_blocks} blocks of {BLOCK_SIZE} tokens; this model needs "
            f"{size} bytes a block and at least {MIN_BLOCKS} blocks ({MIN_BLOCKS * size} bytes)"
        )
    return num_blocks


class KVCache:
    """Owns the key and value tensors of all layers, on the engine's thread; which block belongs to whom, the scheduler
    knows alone.

    A layer's keys and values are each `[num_kv_heads, num_blocks, BLOCK_SIZE * head_dim]`. Only finite numbers are ever
    stored, so that a masked position adds exactly nothing whatever a block held before; who computes must notice what
    is not finite by itself.
    """

    def __init__(self, config: ModelConfig, *, num_blocks: int, dtype: torch.dtype, device: torch.device) -> None:
        self.num_blocks = num_blocks
        self.num_layers = config.num_layers
        self.num_kv_heads = config.num_kv_heads
        self.head_dim = config.head_dim
        self.dtype = dtype
        self.device = device
        self._layers = self._make_layers()

    def resize(self, num_blocks: int) -> None:
        """Hold `num_blocks` blocks from now on, none of which holds what it held before. Views of its layers that were
        handed out are its no more. Raises `KVCacheProblem` where memory for them is short; it is of no use then."""
        self._layers = []  # The old memory goes before the new is taken: both at once may be too much.
        self.num_blocks = num_blocks
        self._layers = self._make_layers()

    def _make_layers(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        shape = (self.num_layers, 2, self.num_kv_heads, self.num_blocks, BLOCK_SIZE * self.head_dim)
        try:
            # Zeroed rather than left empty: the memory is taken now, not under load, and holds finite numbers.
            tensors = torch.zeros(shape, dtype=self.dtype, device=self.device)
        except RuntimeError as error:
            needed = math.prod(shape) * self.dtype.itemsize
            reason = str(error).splitlines()[0]
            raise KVCacheProblem(f"no memory for a KV cache of {needed} bytes on {self.device} ({reason})") from None
        return [(keys, values) for keys, values in tensors]

    def layer(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """A layer's keys and values, each `[num_kv_heads, num_blocks, BLOCK_SIZE * head_dim]`: views, not copies."""
        return self._layers[index]

    def write(self, index: int, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Store `keys` and `values` `[num_tokens, num_kv_heads, head_dim]` of a layer at `slots` `[num_tokens]`, where
        a slot is block · `BLOCK_SIZE` + offset. Numbers that are not finite are stored as finite ones."""
        for cached, fresh in zip(self._layers[index], (keys, values), strict=True):
            positions = cached.view(self.num_kv_heads, -1, self.head_dim)
            positions[:, slots] = fresh.transpose(0, 1).nan_to_num()
