"""Where a step's time goes, from what a profiler saw."""

from __future__ import annotations

import pytest

from serving.engine.bench.gpu.breakdown import COPIES, OTHER, DeviceWork, break_down, part_of


@pytest.mark.parametrize(
    ("kernel", "part"),
    [
        ("_attend_rows", "attention"),
        ("_attend_chunks", "attention"),
        ("_merge", "attention"),
        ("_norm_rows", "norms"),
        ("_rotate_and_store", "rotation"),
        ("_gate_rows", "gates"),
        ("_multiply_tile", "products"),
        ("_add_splits", "products"),
        ("nvjet_tst_128x8_64x12_4x1_v_bz_TNT", "products"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64", "products"),
        ("void gemv2T_kernel_val<int, int, __nv_bfloat16>", "products"),
        ("Memcpy DtoH (Device -> Pinned)", COPIES),
        ("void at::native::reduce_kernel<512, 1, at::native::ArgMaxOps<float>>", OTHER),
        ("void at::native::vectorized_elementwise_kernel<4, FillFunctor>", OTHER),
    ],
)
def test_kernels_are_told_apart_by_their_names(kernel: str, part: str) -> None:
    assert part_of(kernel) == part


def test_parts_and_gaps_are_told_a_step() -> None:
    work = [
        DeviceWork("_multiply_tile", 100, 140),
        DeviceWork("_norm_rows", 150, 160),
        DeviceWork("_multiply_tile", 200, 240),
    ]
    found = break_down(work, num_steps=2)
    assert found.parts["products"] == 40
    assert found.parts["norms"] == 5
    assert found.busy == 45
    assert found.idle == 25


def test_work_at_the_same_time_is_busy_once() -> None:
    work = [DeviceWork("a", 0, 10), DeviceWork("b", 5, 12), DeviceWork("c", 6, 8), DeviceWork("d", 20, 21)]
    found = break_down(work, num_steps=1)
    assert found.busy == 13
    assert found.idle == 8


def test_nothing_seen_is_refused() -> None:
    with pytest.raises(ValueError, match="saw no work"):
        break_down([], num_steps=1)
