"""Norm, rotation and cache write in one kernel beside the plain operations one after another."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from serving.engine.kernels.gpu.rotary import HeadNorm, rotate_and_store
from serving.engine.kv_cache import BLOCK_SIZE
from serving.engine.models.operations import rms_norm
from serving.engine.models.rope import Rotation, rotate

EPS = 1e-6
pytestmark = pytest.mark.heavy

UNTOUCHED = 7.0
HEAD_LAYOUTS = [(4, 2), (6, 2), (9, 3), (7, 1), (8, 8), (16, 2), (1, 1)]
TOLERANCES = {torch.float16: 2e-3, torch.float32: 2e-6}


@dataclasses.dataclass(frozen=True)
class Case:
    """Rows of one step with what the kernel needs beside them."""

    fused: torch.Tensor
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rotation: Rotation
    slots: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor

    def heads(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        sizes = [self.num_heads, self.num_kv_heads, self.num_kv_heads]
        queries, keys, values = self.fused.view(len(self.fused), -1, self.head_dim).split(sizes, dim=1)
        return queries, keys, values

    def run(self, norm: HeadNorm | None = None) -> torch.Tensor:
        return rotate_and_store(
            self.fused,
            num_heads=self.num_heads,
            cosines=self.rotation.cosines,
            sines=self.rotation.sines,
            slots=self.slots,
            keys=self.keys,
            values=self.values,
            norm=norm,
        )

    def stored(self, cached: torch.Tensor) -> torch.Tensor:
        """`[num_stored, num_kv_heads, head_dim]` at the slots that are written."""
        positions = cached.view(self.num_kv_heads, -1, self.head_dim)
        return positions[:, self.slots[self.slots >= 0].long()].transpose(0, 1)


def _case(
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    *,
    dtype: torch.dtype = torch.float16,
    num_tokens: int = 5,
    rotary_dim: int | None = None,
    slot_dtype: torch.dtype = torch.int32,
) -> Case:
    torch.manual_seed(num_heads * 1000 + head_dim)
    angles = torch.rand(num_tokens, (rotary_dim or head_dim) // 2) * 2 * math.pi
    num_blocks = 3
    slots = torch.randperm(num_blocks * BLOCK_SIZE)[:num_tokens].to(slot_dtype)
    shape = (num_kv_heads, num_blocks, BLOCK_SIZE * head_dim)
    return Case(
        torch.randn(num_tokens, (num_heads + 2 * num_kv_heads) * head_dim).to(dtype),
        num_heads,
        num_kv_heads,
        head_dim,
        Rotation(angles.cos().to(dtype), angles.sin().to(dtype)),
        slots,
        torch.full(shape, UNTOUCHED, dtype=dtype),
        torch.full(shape, UNTOUCHED, dtype=dtype),
    )


def _turned(heads: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    rotary_dim = 2 * rotation.cosines.shape[1]
    return torch.cat([rotate(heads[..., :rotary_dim], rotation), heads[..., rotary_dim:]], dim=-1)


def _close(result: torch.Tensor, expected: torch.Tensor) -> bool:
    tolerance = TOLERANCES[expected.dtype]
    return torch.allclose(result, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("head_dim", [16, 20, 64])
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), HEAD_LAYOUTS)
def test_queries_are_rotated_and_keys_and_values_stored(
    num_heads: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
) -> None:
    case = _case(num_heads, num_kv_heads, head_dim, dtype=dtype)
    queries, keys, values = case.heads()
    assert _close(case.run(), rotate(queries, case.rotation))
    assert _close(case.stored(case.keys), rotate(keys, case.rotation))
    assert torch.equal(case.stored(case.values), values)


@pytest.mark.parametrize("head_dim", [80, 96, 128, 256])
def test_wide_heads_are_rotated_and_stored(head_dim: int) -> None:
    case = _case(4, 2, head_dim, num_tokens=2)
    queries, keys, values = case.heads()
    assert torch.equal(case.run(), rotate(queries, case.rotation))
    assert torch.equal(case.stored(case.keys), rotate(keys, case.rotation))
    assert torch.equal(case.stored(case.values), values)


@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(64, 16), (20, 10), (96, 72), (16, 2)])
def test_dimensions_past_the_rotary_ones_stay(head_dim: int, rotary_dim: int) -> None:
    case = _case(6, 2, head_dim, rotary_dim=rotary_dim)
    queries, keys, values = case.heads()
    assert torch.equal(case.run(), _turned(queries, case.rotation))
    assert torch.equal(case.stored(case.keys), _turned(keys, case.rotation))
    assert torch.equal(case.stored(case.values), values)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("head_dim", "rotary_dim"), [(16, 16), (20, 20), (128, 128), (96, 72)])
def test_heads_are_normed_before_they_are_rotated(head_dim: int, rotary_dim: int, dtype: torch.dtype) -> None:
    case = _case(4, 2, head_dim, rotary_dim=rotary_dim, dtype=dtype)
    norm = HeadNorm(torch.randn(head_dim).to(dtype), torch.randn(head_dim).to(dtype), EPS)
    queries, keys, values = case.heads()
    assert _close(case.run(norm), _turned(rms_norm(queries, norm.query, EPS), case.rotation))
    assert _close(case.stored(case.keys), _turned(rms_norm(keys, norm.key, EPS), case.rotation))
    assert torch.equal(case.stored(case.values), values)


def test_weights_of_head_norms_can_be_counted_from_one() -> None:
    case = _case(4, 2, 32, dtype=torch.float32)
    norm = HeadNorm(torch.randn(32) / 10, torch.randn(32) / 10, EPS, adds_one=True)
    queries, keys, _ = case.heads()
    assert _close(case.run(norm), rotate(rms_norm(queries, 1 + norm.query, EPS), case.rotation))
    assert _close(case.stored(case.keys), rotate(rms_norm(keys, 1 + norm.key, EPS), case.rotation))


@pytest.mark.parametrize("slot_dtype", [torch.int32, torch.int64])
def test_a_row_without_a_slot_is_stored_nowhere(slot_dtype: torch.dtype) -> None:
    case = _case(4, 2, 16, num_tokens=6, slot_dtype=slot_dtype)
    case.slots[[1, 4]] = -1
    queries, keys, _ = case.heads()
    written = case.slots >= 0
    assert torch.equal(case.run()[written], rotate(queries, case.rotation)[written])
    assert torch.equal(case.stored(case.keys), rotate(keys, case.rotation)[written])
    for cached in (case.keys, case.values):
        positions = cached.view(2, -1, 16)
        others = torch.ones(positions.shape[1], dtype=torch.bool)
        others[case.slots[written].long()] = False
        assert (positions[:, others] == UNTOUCHED).all()


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_only_finite_numbers_are_stored(dtype: torch.dtype) -> None:
    case = _case(2, 1, 16, dtype=dtype, num_tokens=3)
    rows = case.fused.view(3, 4, 16)
    rows[0, 2:, 3], rows[1, 2:, 4], rows[2, 2:, 5] = float("nan"), float("inf"), float("-inf")
    _, keys, values = case.heads()
    case.run()
    assert torch.equal(case.stored(case.values), values.nan_to_num())
    stored, expected = case.stored(case.keys), rotate(keys, case.rotation).nan_to_num()
    assert stored.isfinite().all()
    assert _close(stored, expected)


def test_rows_may_lie_apart() -> None:
    case = _case(4, 2, 16)
    wide = torch.randn(5, case.fused.shape[1] + 24).half()
    wide[:, : case.fused.shape[1]] = case.fused
    apart = dataclasses.replace(case, fused=wide[:, : case.fused.shape[1]])
    assert torch.equal(apart.run(), rotate(case.heads()[0], case.rotation))


def test_rows_of_another_width_are_refused() -> None:
    case = _case(4, 2, 16)
    with pytest.raises(ValueError, match="fused rows have 128 numbers, not those of 5 query heads"):
        dataclasses.replace(case, num_heads=5).run()


def test_no_rows_are_no_work() -> None:
    case = _case(4, 2, 16, num_tokens=0)
    assert case.run().shape == (0, 4, 16)
