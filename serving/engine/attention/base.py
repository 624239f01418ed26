"""What an attention backend does for the decoder."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
import torch


@dataclasses.dataclass(frozen=True, slots=True)
class LayerAttention:
    """How one layer weighs positions: a score is query · key times `scale`.

    With a `softcap` scores become softcap · tanh(score / softcap) (Gemma 2 report, section 2). With a `window` a row at
    position p sees the positions p - window + 1 … p alone (Beltagy et al. 2020, "Longformer", section 3.1). Raises
    `ValueError` for a window below 1 and for a scale or softcap that is not positive and finite.
    """

    scale: float
    window: int | None = None
    softcap: float | None = None

    def __post_init__(self) -> None:
        for name, value in (("scale", self.scale), ("softcap", self.softcap)):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"attention's {name} is {value}; it must be positive and finite")
        if self.window is not None and self.window < 1:
            raise ValueError(f"attention's window is {self.window}; it must be at least 1")


# A Struct, as `PlannedChunk` is: one is made for each sequence in each step.
class AttentionChunk(msgspec.Struct, frozen=True, gc=False):
    """One sequence's rows in a step: `num_tokens` consecutive rows from `first_row`, at positions `start …`.

    `block_table` names the blocks of positions 0 to the last one's. A backend may compute a prompt's rows in one way
    and those of decoding in another, whose results differ in rounding; which, `is_prefill` says, so that neither a
    prompt's cut nor drafted tokens beside a decoded one change any bit.
    """

    first_row: int
    num_tokens: int
    start: int
    block_table: Sequence[int]
    is_prefill: bool | None = None
    """Where it is not known, more than one token are taken for a prompt's."""

    @property
    def end(self) -> int:
        """Position after the last row's."""
        return self.start + self.num_tokens

    @property
    def decodes(self) -> bool:
        """Whether each row is computed by itself, as one that decodes."""
        return self.num_tokens == 1 if self.is_prefill is None else not self.is_prefill


class AttentionBackend(Protocol):
    """Attention over a paged KV cache. Owns no memory between steps but the cache it was built with; called by the
    engine's thread only. Rows are independent: none's result depends on which others share the step."""

    @property
    def name(self) -> str:
        """The name by which a setting chooses this backend."""
        ...

    def prepare(self, chunks: Sequence[AttentionChunk]) -> Any:
        """Index tensors for a step, made once for all layers; passed back to `attend` as `batch`.

        Its `slots` `[num_tokens]`, on the cache's device, say where each row's key and value are stored (see
        `KVCache.write`); one below 0 stands for a row that is not stored.
        """
        ...

    def attend(
        self, layer: int, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, batch: Any
    ) -> torch.Tensor:
        """Store the step's `keys` and `values` `[num_tokens, num_kv_heads, head_dim]`, then let each row of `queries`
        `[num_tokens, num_heads, head_dim]` attend to all positions of its sequence up to its own that the layer sees.

        Returns `[num_tokens, num_heads * head_dim]` in the dtype of `queries`.
        """
        ...

    def attend_stored(self, layer: int, queries: torch.Tensor, *, batch: Any) -> torch.Tensor:
        """As `attend`, for a step whose keys and values have been stored already, at `batch.slots`."""
        ...
