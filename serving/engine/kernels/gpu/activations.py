"""Gated activations of a feed-forward layer in one pass (Shazeer 2020, "GLU Variants Improve Transformer")."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from serving.engine.models.families import Activation

_BLOCK = 1024


def gate(gate_up: torch.Tensor, activation: Activation = "silu") -> torch.Tensor:
    """The activation of the first half of `gate_up` `[num_rows, 2 * size]` (contiguous) times the second:
    `[num_rows, size]`.

    `silu` is x · sigmoid(x); `gelu_tanh` the approximation of x · Φ(x) by Hendrycks and Gimpel 2016, section 2.
    Computed in fp32; the activation is rounded to the rows' dtype before the product, as PyTorch's operations do one
    after the other.
    """
    num_rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    gated = torch.empty(num_rows, size, dtype=gate_up.dtype, device=gate_up.device)
    if num_rows == 0:
        return gated
    block = min(_BLOCK, triton.next_power_of_2(size))
    _gate_rows[(num_rows, triton.cdiv(size, block))](
        gate_up, gated, SIZE=size, BLOCK=block, IS_GELU=activation == "gelu_tanh", num_warps=4
    )
    return gated


@triton.jit
def _gate_rows(gate_up, gated, SIZE: tl.constexpr, BLOCK: tl.constexpr, IS_GELU: tl.constexpr):
    """A program gates `BLOCK` columns of one row."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < SIZE
    gates = tl.load(gate_up + row * (2 * SIZE) + columns, mask=mask, other=0.0).to(tl.float32)
    ups = tl.load(gate_up + row * (2 * SIZE) + SIZE + columns, mask=mask, other=0.0).to(tl.float32)
    inner = gates
    if IS_GELU:
        # (1 + tanh(u)) / 2 is the sigmoid of 2 u.
        inner = 1.5957691216057308 * (gates + 0.044715 * gates * gates * gates)
    activated = (gates / (1.0 + tl.exp(-inner))).to(gated.dtype.element_ty).to(tl.float32)
    tl.store(gated + row * SIZE + columns, activated * ups, mask=mask)
