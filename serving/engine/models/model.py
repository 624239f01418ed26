"""What the runner asks of a model on its device: hidden states in, logits out, keys and values kept between."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch

from serving.engine.attention.base import AttentionChunk


@dataclasses.dataclass(frozen=True, slots=True)
class Awaited:
    """Tokens that the host does not know yet: those of `rows` `[num_awaited]` are at `places` `[num_awaited]` of
    `chosen`, which are on the model's device, all of the vocabulary."""

    rows: npt.NDArray[np.int64]
    chosen: torch.Tensor
    places: npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class Batch:
    """One step's rows, ragged: `token_ids` and `positions` `[num_tokens]` (rows of the rotary table: see
    `models/rope.py`), the `chunks` that they belong to in order, the rows whose logits are wanted, `logit_rows`
    `[num_logit_rows]`, and those whose hidden states are, `hidden_rows` `[num_hidden_rows]`. Rows that are `awaited`
    have any token among `token_ids`."""

    token_ids: npt.NDArray[np.int64]
    positions: npt.NDArray[np.int64]
    chunks: Sequence[AttentionChunk]
    logit_rows: npt.NDArray[np.int64]
    hidden_rows: npt.NDArray[np.int64] = dataclasses.field(default_factory=lambda: np.empty(0, dtype=np.int64))
    awaited: Awaited | None = None

    def known_token_ids(self) -> npt.NDArray[np.int64]:
        """`token_ids` with those awaited: for a model that computes on the host, where they are known already."""
        if self.awaited is None:
            return self.token_ids
        token_ids = self.token_ids.copy()
        token_ids[self.awaited.rows] = self.awaited.chosen.numpy()[self.awaited.places]
        return token_ids


@dataclasses.dataclass(frozen=True, slots=True)
class Computed:
    """What came of a batch: fp32 `logits` `[num_logit_rows, vocab_size]` (the receiver may change them), fp32 `hidden`
    `[num_hidden_rows, hidden_size]` (after the last norm, as they enter the output layer), both good until the next
    `forward`, and `is_unsound` `[num_tokens]`, which is not 0 for rows with numbers that are not finite; all on the
    model's device. The seconds of matrix products and of attention are 0 where they cannot be told from the rest."""

    logits: torch.Tensor
    hidden: torch.Tensor
    is_unsound: torch.Tensor
    linear_seconds: float = 0.0
    attention_seconds: float = 0.0

    @property
    def unsound_rows(self) -> npt.NDArray[np.int64]:
        """The rows with numbers that are not finite; waits for the device."""
        return self.is_unsound.cpu().numpy().nonzero()[0]


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
        """Store the batch's keys and values and compute the wanted logits and hidden states. On a GPU the host waits
        neither here nor in `prepare`: what was computed is ready when the device has come so far."""
        ...


@runtime_checkable
class RecordingModel(Model, Protocol):
    """A model that records steps which it repeats."""

    def record_steps(self) -> None:
        """Record them: when all that they use has its final place."""
        ...


@runtime_checkable
class ResizableModel(Model, Protocol):
    """A model whose KV cache gets its size when all else has its memory, as it does on an accelerator."""

    def resize(self, num_blocks: int) -> None:
        """Hold `num_blocks` blocks from now on, and nothing of what was stored before. Raises `KVCacheProblem` where
        memory for them is short."""
        ...
