"""What an attention backend does for the decoder."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import torch


@dataclasses.dataclass(frozen=True, slots=True)
class AttentionChunk:
    """One sequence's rows in a step: `num_tokens` consecutive rows from `first_row`, at positions `start …`.

    `block_table` names the blocks of positions 0 to the last one's.
    """

    first_row: int
    num_tokens: int
    start: int
    block_table: Sequence[int]

    @property
    def end(self) -> int:
        """Position after the last row's."""
        return self.start + self.num_tokens


class AttentionBackend(Protocol):
    """Attention over a paged KV cache. Owns no memory between steps but the cache it was built with; called by the
    engine's thread only. Rows are independent: none's result depends on which others share the step."""

    @property
    def name(self) -> str:
        """The name by which a setting chooses this backend."""
        ...

    def prepare(self, chunks: Sequence[AttentionChunk]) -> Any:
        """Index tensors for a step, made once for all layers; passed back to `attend` as `batch`."""
        ...

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, batch: Any
    ) -> torch.Tensor:
        """Store the step's `keys` and `values` `[num_tokens, num_kv_heads, head_dim]`, then let each row of `queries`
        `[num_tokens, num_heads, head_dim]` attend to all positions of its sequence up to its own.

        Returns `[num_tokens, num_heads * head_dim]` in the dtype of `queries`.
        """
        ...
