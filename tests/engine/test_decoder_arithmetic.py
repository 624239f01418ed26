"""The decoder's row-wise operations: a row's bf16 result is bit for bit the same in any number of rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from serving.engine.models.decoder import linear, rms_norm

pytestmark = pytest.mark.heavy

_NUM_ROWS = (2, 3, 7, 16, 17, 33, 64, 65, 130, 260)


def _assert_independent_of_company(compute: Callable[[torch.Tensor], torch.Tensor], rows: torch.Tensor) -> None:
    alone = torch.cat([compute(row[None]) for row in rows])
    for count in _NUM_ROWS:
        together = torch.cat([compute(part) for part in rows.split(count)])
        assert torch.equal(together, alone), f"{count} rows at once"


@pytest.mark.parametrize("shape", [(960, 576), (576, 1536), (3072, 576), (256, 4096), (2048, 1100)])
def test_a_linear_row_does_not_depend_on_company(shape: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(4)
    weight = (torch.randn(shape, generator=generator) * 0.05).bfloat16()
    bias = torch.randn(shape[0], generator=generator).bfloat16()
    rows = torch.randn(260, shape[1], generator=generator).bfloat16()
    _assert_independent_of_company(lambda part: linear(part, weight), rows)
    _assert_independent_of_company(lambda part: linear(part, weight, bias), rows)


@pytest.mark.parametrize("size", [64, 576, 4096])
def test_a_normed_row_does_not_depend_on_company(size: int) -> None:
    generator = torch.Generator().manual_seed(4)
    weight = torch.randn(size, generator=generator).bfloat16()
    rows = torch.randn(260, size, generator=generator).bfloat16()
    _assert_independent_of_company(lambda part: rms_norm(part, weight, 1e-5), rows)
