"""What the runner asks of a model on its device: hidden states in, logits out, keys and values kept between."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from serving.engine.attention.base import AttentionChunk


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """One step's rows, ragged: `token_ids` and `positions` `[num_tokens]`, the `chunks` that they belong to in order,
    the rows whose logits are wanted, `logit_rows` `[num_logit_rows]`, and those whose hidden states are, `hidden_rows`
    `[num_hidden_rows]`."""

    token_ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    chunks: Sequence[AttentionChunk]
    logit_rows: npt.NDArray[np.int64]
    hidden_rows: npt.NDArray[np.int64] = dataclasses.field(default_factory=lambda: np.empty(0, dtype=np.int64))


@dataclasses.dataclass(frozen=True, slots=True)
class Computed:
    """What came of a batch: fp32 `logits` `[num_logit_rows, vocab_size]` (the receiver may change them), fp32 `hidden`
    `[num_hidden_rows, hidden_size]` (after the last norm, as they enter the output layer), both good until the next
    `forward`, and the rows with numbers that are not finite. The seconds of matrix products and of attention are 0
    where they cannot be told from the rest."""

    logits: torch.Tensor
    hidden: torch.Tensor
    unsound_rows: npt.NDArray[np.int64]
    linear_seconds: float = 0.0
    attention_seconds: float = 0.0


class Model(Protocol):
    """A decoder with its weights and its KV cache on one device; called by the engine's thread only.

    A row's numbers are a function of its sequence alone, bit for bit: not of who shares the step, nor of how the
    sequence was cut into chunks.
    """

    @property
    def name(self) -> str:
        """The name by which a setting chooses this implementation."""
        ...

    @property
    def num_blocks(self) -> int:
        """Blocks of the KV cache."""
        ...

    @property
    def weight_bytes(self) -> int:
        """What a step reads of the weights at least: all matrices, the output layer among them."""
        ...

    def prepare(self, batch: Batch) -> Any:
        """What `forward` needs of `batch` before it can begin: indices, copies to the device."""
        ...

    def forward(self, prepared: Any) -> Computed:
        """Store the batch's keys and values and compute the wanted logits and hidden states."""
        ...
