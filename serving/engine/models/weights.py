"""A decoder's weights, as everything that computes with them takes them."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch.nn import functional as F  # noqa: N812


class Matrix(Protocol):
    """The weights `[out, in]` of one product, however they are kept, with the bias that belongs to it."""

    @property
    def bias(self) -> torch.Tensor | None:
        """`[out]`, in the model's dtype."""
        ...

    @property
    def num_bytes(self) -> int:
        """What a product reads of the weights."""
        ...

    def times(self, rows: torch.Tensor) -> torch.Tensor:
        """`rows` `[num_rows, in]` times the weights transposed, plus the bias: `[num_rows, out]`, in the rows' dtype.

        A row's result does not depend on how many there are.
        """
        ...

    def plain(self) -> torch.Tensor:
        """The weights `[out, in]` in the model's dtype, without the bias: for who keeps them in a layout of its own."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class PlainMatrix:
    """Weights `[out, in]` that are kept as they are."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """As `Matrix.num_bytes`."""
        return self.weight.nbytes

    def times(self, rows: torch.Tensor) -> torch.Tensor:
        """As `Matrix.times`."""
        return linear(rows, self.weight, self.bias)

    def plain(self) -> torch.Tensor:
        """As `Matrix.plain`."""
        return self.weight


@dataclasses.dataclass(frozen=True, slots=True)
class DenseWeights:
    """A feed-forward part, or one expert of many. Gate and up are fused along their outputs."""

    gate_up: Matrix
    down: Matrix

    @property
    def num_bytes(self) -> int:
        """What a step reads of the matrices."""
        return self.gate_up.num_bytes + self.down.num_bytes

    def mapped(self, change: Callable[[Matrix], Matrix]) -> DenseWeights:
        """The same part with every matrix changed."""
        return DenseWeights(change(self.gate_up), change(self.down))


@dataclasses.dataclass(frozen=True, slots=True)
class StackedExperts:
    """All experts' weights as one tensor each, of which the single experts' matrices are views: `gate_up`
    `[num_experts, 2 * inner, hidden]`, `down` `[num_experts, hidden, inner]`."""

    gate_up: torch.Tensor
    down: torch.Tensor


@dataclasses.dataclass(frozen=True, slots=True)
class SparseWeights:
    """A feed-forward part of many experts, of which the `router` `[num_experts, hidden]` chooses `num_active` for each
    token (Shazeer et al. 2017, "Outrageously Large Neural Networks", section 2). They may be `stacked` too."""

    router: Matrix
    experts: tuple[DenseWeights, ...]
    num_active: int
    stacked: StackedExperts | None = None

    @property
    def num_bytes(self) -> int:
        """What a step reads of the matrices at least: where all its tokens have the same experts."""
        return self.router.num_bytes + self.num_active * self.experts[0].num_bytes

    def mapped(self, change: Callable[[Matrix], Matrix]) -> SparseWeights:
        """The same part with every expert's matrices changed, and the router, whose choices a digit may turn, as it
        is."""
        return SparseWeights(self.router, tuple(expert.mapped(change) for expert in self.experts), self.num_active)


def stacked(weights: SparseWeights) -> SparseWeights:
    """The same part with its experts stacked, so that a GPU computes them together: where they are plain and in a form
    that grouped products take, bf16 in rows of a multiple of 16 bytes. Takes memory for its experts twice, as long as
    the caller holds those given."""
    gate_up, down = ([getattr(expert, name) for expert in weights.experts] for name in ("gate_up", "down"))
    if weights.stacked is not None or not _are_stackable(gate_up) or not _are_stackable(down):
        return weights
    whole = StackedExperts(*(torch.stack([matrix.plain() for matrix in matrices]) for matrices in (gate_up, down)))
    experts = [
        DenseWeights(PlainMatrix(one), PlainMatrix(other)) for one, other in zip(whole.gate_up, whole.down, strict=True)
    ]
    return dataclasses.replace(weights, experts=tuple(experts), stacked=whole)


def _are_stackable(matrices: Sequence[Matrix]) -> bool:
    return all(
        isinstance(matrix, PlainMatrix)
        and matrix.bias is None
        and matrix.weight.dtype == torch.bfloat16
        and matrix.weight.shape[0] % 8 == matrix.weight.shape[1] % 8 == 0
        for matrix in matrices
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LayerWeights:
    """One decoder layer. Queries, keys and values are fused along their outputs. Where there are norms of outputs, what
    attention and the feed-forward part give is normed by them before it is added."""

    input_norm: torch.Tensor
    qkv: Matrix
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    output: Matrix
    mlp_norm: torch.Tensor
    feed_forward: DenseWeights | SparseWeights
    attention_output_norm: torch.Tensor | None = None
    mlp_output_norm: torch.Tensor | None = None

    @property
    def num_bytes(self) -> int:
        """What a step reads of the matrices at least."""
        return self.qkv.num_bytes + self.output.num_bytes + self.feed_forward.num_bytes

    def mapped(self, change: Callable[[Matrix], Matrix]) -> LayerWeights:
        """The same layer with the weights of every product changed, but those of routers."""
        return dataclasses.replace(
            self,
            qkv=change(self.qkv),
            output=change(self.output),
            feed_forward=self.feed_forward.mapped(change),
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DecoderWeights:
    """A whole decoder. `embedding` is `[vocab_size, hidden]`; `vocabulary`, the output layer, has the same weights
    where the model ties them."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: torch.Tensor
    vocabulary: Matrix

    @property
    def num_bytes(self) -> int:
        """What a step reads of the matrices at least, the output layer among them."""
        return self.vocabulary.num_bytes + sum(layer.num_bytes for layer in self.layers)


def linear(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`rows` `[num_rows, in]` times `weight` `[out, in]` transposed, plus `bias` `[out]`: `[num_rows, out]`.

    On a CPU in bf16 a few more rows may be computed than there are: how oneDNN sums a row depends on how many it has
    beside it (see `_num_computed`), and the last bit of a result would then depend on company.
    """
    num_rows = len(rows)
    if rows.dtype != torch.bfloat16 or rows.device.type != "cpu":
        return F.linear(rows, weight, bias)
    if (num_computed := _num_computed(num_rows)) == num_rows:
        return F.linear(rows, weight, bias)
    return F.linear(F.pad(rows, (0, 0, 0, num_computed - num_rows)), weight, bias)[:num_rows]


def _num_computed(num_rows: int) -> int:
    """How many rows to compute so that each of `num_rows` is summed in the same order as among any other number.

    A lone row of more than 1024 inputs is summed in another order than two; reading the weight is what takes the time,
    so the second costs next to nothing. With AVX-512 but without instructions for bf16, rows are dealt out to threads
    first, and it is a thread's lone row that is summed in another order: each thread needs an even number.
    """
    if threads_differ():
        multiple = 2 * torch.get_num_threads()
        return math.ceil(num_rows / multiple) * multiple
    return max(2, num_rows)


@functools.cache
def threads_differ() -> bool:
    """Whether PyTorch's bf16 products on this processor depend on how many rows each thread has."""
    instructions = torch.cpu.get_capabilities()
    return bool(instructions.get("avx512_f")) and not (instructions["avx512_bf16"] or instructions["amx_bf16"])
