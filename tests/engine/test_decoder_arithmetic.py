"""The decoder's row-wise operations: a row's bf16 result is bit for bit the same in any number of rows."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from serving.engine.models.operations import rms_norm, rms_norm_adding_one
from serving.engine.models.rope import Rotation, rotary_frequencies, rotary_rows, rotate
from serving.engine.models.rope_config import RopeConfig
from serving.engine.models.weights import linear

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


@pytest.mark.parametrize("norm", [rms_norm, rms_norm_adding_one])
@pytest.mark.parametrize("size", [64, 576, 4096])
def test_a_normed_row_does_not_depend_on_company(
    size: int, norm: Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
) -> None:
    generator = torch.Generator().manual_seed(4)
    weight = torch.randn(size, generator=generator).bfloat16()
    rows = torch.randn(260, size, generator=generator).bfloat16()
    _assert_independent_of_company(lambda part: norm(part, weight, 1e-5), rows)


def test_a_norm_that_adds_one_rounds_once_at_the_end() -> None:
    """A weight that bf16 has, but not 1 + the weight."""
    weight = torch.full((64,), 2.0**-9, dtype=torch.bfloat16)
    rows = torch.full((3, 64), 3.0, dtype=torch.bfloat16)
    assert torch.equal(rms_norm_adding_one(rows, weight, 0.0), torch.ones_like(rows))
    assert torch.equal(rms_norm_adding_one(rows, weight * 4, 0.0), torch.full_like(rows, 1 + 2.0**-7))
    exact = rms_norm_adding_one(rows.float(), weight.float(), 0.0)
    assert torch.allclose(exact, torch.full_like(exact, 1 + 2.0**-9), rtol=1e-6)


def test_only_a_part_of_a_head_is_rotated_where_the_model_says_so() -> None:
    generator = torch.Generator().manual_seed(4)
    heads = torch.randn(5, 3, 16, generator=generator)
    angles = torch.randn(5, 6, generator=generator)
    rotated = rotate(heads, Rotation(angles.cos(), angles.sin()))
    assert torch.equal(rotated[..., 12:], heads[..., 12:])
    whole = rotate(heads[..., :12].contiguous(), Rotation(angles.cos(), angles.sin()))
    assert torch.equal(rotated[..., :12], whole)
    turned = torch.complex(heads[..., :6], heads[..., 6:12]) * torch.polar(torch.ones(5, 1, 6), angles[:, None])
    assert torch.allclose(rotated[..., :12], torch.cat([turned.real, turned.imag], dim=-1), atol=1e-5)


def test_long_sequences_have_rows_of_their_own_behind_those_of_short_ones() -> None:
    rope = RopeConfig(
        kind="longrope",
        original_max_position_embeddings=10,
        short_factors=(1.0, 2.0),
        long_factors=(4.0, 8.0),
        attention_factor=1.5,
    )
    cosines, sines = rotary_rows(rope, head_dim=4, max_model_len=30)
    assert cosines.shape == sines.shape == (40, 2)
    assert torch.allclose(cosines[7], 1.5 * torch.tensor([7.0, 7 / 200]).cos())
    assert torch.allclose(sines[10 + 7], 1.5 * torch.tensor([7 / 4, 7 / 800]).sin())
    assert torch.equal(cosines[10], torch.full((2,), 1.5))


def test_every_cosine_and_sine_is_the_nearest_number() -> None:
    """So they are the same in every engine, whatever else its machine does when it starts."""
    rope = RopeConfig(theta=100_000.0)
    cosines, sines = rotary_rows(rope, head_dim=64, max_model_len=2048)
    angles = torch.arange(2048, dtype=torch.float32)[:, None] * rotary_frequencies(rope, 64)
    for found, function in ((cosines, math.cos), (sines, math.sin)):
        nearest = torch.tensor([function(angle) for angle in angles.flatten().tolist()], dtype=torch.float32)
        assert torch.equal(found.flatten(), nearest)
