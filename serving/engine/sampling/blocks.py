"""Rows of a vocabulary looked at in blocks of tokens: what is cheap to know of each block spares most of the row."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812

_WIDTH = 64
_SUM_WIDTH = 256


def is_on_cpu(tensor: torch.Tensor) -> bool:
    """Whether NumPy can work on a tensor as it stands. Where it is vectorised and PyTorch is not, it is chosen then."""
    return tensor.device.type == "cpu"


def width_of_block(vocab_size: int) -> int:
    """Tokens of a block of `block_sums`."""
    return min(_SUM_WIDTH, vocab_size)


def block_sums(weights: torch.Tensor) -> torch.Tensor:
    """Sums of consecutive tokens' `weights` `[num_rows, vocab_size]`, fp32 `[num_rows, num_blocks]`; the last block may
    be shorter."""
    return _blocks(weights, width_of_block(weights.shape[-1]), filler=0.0).sum(dim=-1)


def strided_maxima(values: torch.Tensor, num_blocks: int) -> torch.Tensor:
    """Maxima of `num_blocks` blocks of `values` `[num_rows, vocab_size]` that together cover it but for a few of its
    last: `[num_rows, num_blocks]`. A block's tokens lie `num_blocks` apart, since likely tokens are often neighbours.
    """
    width = values.shape[-1] // num_blocks
    covered = values[:, : width * num_blocks]
    return covered.reshape(len(values), width, num_blocks).amax(dim=1)


def largest(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest of `values` `[num_rows, vocab_size]` in no particular order, and where they stand; each
    `[num_rows, count]`.

    They lie in the `count` blocks whose maxima are the largest, so that the rest is read only once.
    """
    width = min(_WIDTH, values.shape[-1])
    blocks = _blocks(values, width, filler=-torch.inf)
    if blocks.shape[1] <= count:
        return _top(values, count)
    chosen = _top(blocks.amax(dim=-1), count)[1]
    candidates = blocks.gather(1, chosen[:, :, None].expand(-1, -1, width)).flatten(1)
    found, places = _top(candidates, count)
    block = chosen.gather(1, places // width)
    return found, block * width + places % width


def _top(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    found = values.topk(count, dim=-1)
    return found.values, found.indices


def _blocks(values: torch.Tensor, width: int, *, filler: float) -> torch.Tensor:
    """`values` as `[num_rows, num_blocks, width]`; a view where the width divides the rows."""
    missing = -values.shape[-1] % width
    padded = F.pad(values, (0, missing), value=filler) if missing else values
    return padded.reshape(len(values), padded.shape[-1] // width, width)
