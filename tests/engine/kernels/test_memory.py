"""Memory in large pages is as good as any other."""

from __future__ import annotations

import pytest
import torch

from serving.engine.kernels.memory import LargePages, zeros_in_large_pages


def test_zeros_are_zeros_that_can_be_written() -> None:
    zeros = zeros_in_large_pages((3, 5, 7), torch.bfloat16)
    assert zeros.shape == (3, 5, 7)
    assert zeros.dtype == torch.bfloat16
    assert not zeros.any()
    zeros[1, 2, 3] = 4
    assert zeros.sum() == 4


def test_nothing_at_all_can_be_had_too() -> None:
    assert zeros_in_large_pages((0, 9), torch.float32).shape == (0, 9)


@pytest.mark.parametrize("count", [1 << 50, 1 << 62, 1 << 80])
def test_more_than_the_machine_has_is_refused(count: int) -> None:
    with pytest.raises(MemoryError, match=f"no memory for {4 * count} bytes"):
        zeros_in_large_pages((count,), torch.float32)


def test_pieces_keep_their_contents_and_begin_at_cache_lines() -> None:
    memory = LargePages()
    pieces = [torch.randint(0, 255, (size,), dtype=torch.uint8) for size in (1, 63, 64, 65, 70 << 20, 3)]
    pieces.append(torch.randn(4, 6).to(torch.bfloat16).t())
    kept = [memory.keep(piece) for piece in pieces]
    for piece, copy in zip(pieces, kept, strict=True):
        assert torch.equal(piece, copy)
        assert copy.is_contiguous()
        assert copy.dtype == piece.dtype
        assert copy.data_ptr() % 64 == 0
