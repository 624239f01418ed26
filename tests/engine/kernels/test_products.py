"""A product of the kernels is what plain arithmetic makes of it, in every format, and no row knows its company."""

from __future__ import annotations

import pytest
import torch

from serving.engine.kernels.library import Library
from serving.engine.kernels.loading import multiplies_right
from serving.engine.kernels.matrices import KernelMatrix
from serving.engine.kernels.quantised import (
    WeightFormat,
    dequantised,
    group_of,
    quantised,
    rounded_rows,
    rounded_weights,
)

pytestmark = pytest.mark.heavy

_FORMATS: tuple[WeightFormat, ...] = ("bfloat16", "int8", "int4", "w8a8")


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def _rows(*shape: int) -> torch.Tensor:
    """Random ones on steps of 1/32, so that sums of them are exact in whatever order they are rotated."""
    return ((_random(*shape).float() * 32).round() / 32).bfloat16()


def _expected(rows: torch.Tensor, weight: torch.Tensor, weight_format: WeightFormat) -> torch.Tensor:
    """The product in fp64 of what the format makes of both."""
    return rounded_rows(rows, weight_format) @ rounded_weights(weight, weight_format).double().T


def _assert_right(kernels: Library, rows: torch.Tensor, weight: torch.Tensor, weight_format: WeightFormat) -> None:
    found = KernelMatrix(weight, weight_format=weight_format).times(rows, kernels)
    expected = _expected(rows, weight, weight_format)
    torch.testing.assert_close(found[:, : len(weight)].double(), expected, rtol=1e-5, atol=2e-6 * rows.shape[1])
    assert not found[:, len(weight) :].any(), "outputs of padding are zero"


@pytest.mark.parametrize("weight_format", _FORMATS)
def test_products_of_any_number_of_rows(kernels: Library, weight_format: WeightFormat) -> None:
    rows, weight = _rows(70, 160), _random(144, 160, seed=1)
    for num_rows in (*range(1, 41), 70):
        _assert_right(kernels, rows[:num_rows], weight, weight_format)


@pytest.mark.parametrize("weight_format", _FORMATS)
@pytest.mark.parametrize(
    ("num_outputs", "num_inputs"),
    [(1, 1), (16, 32), (17, 33), (48, 31), (301, 64), (2100, 40), (80, 96), (33, 576), (16, 1504), (48, 1536)],
)
def test_products_of_any_shape(
    kernels: Library, weight_format: WeightFormat, num_outputs: int, num_inputs: int
) -> None:
    _assert_right(kernels, _rows(9, num_inputs), _random(num_outputs, num_inputs, seed=1), weight_format)


@pytest.mark.parametrize("weight_format", _FORMATS)
def test_products_are_near_those_of_what_was_given(kernels: Library, weight_format: WeightFormat) -> None:
    """However rows are rotated and rounded on the way."""
    rows, weight = _random(12, 576), _random(64, 576, seed=1)
    found = KernelMatrix(weight, weight_format=weight_format).times(rows, kernels).double()
    exact = rows.double() @ weight.double().T
    bounds = {"bfloat16": 1e-6, "int8": 0.006, "int4": 0.09, "w8a8": 0.012}
    assert (found - exact).norm() < bounds[weight_format] * exact.norm()


@pytest.mark.parametrize("weight_format", _FORMATS)
def test_a_row_is_the_same_bit_for_bit_in_any_company(kernels: Library, weight_format: WeightFormat) -> None:
    rows = _random(70, 1056)
    matrix = KernelMatrix(_random(80, 1056, seed=1), weight_format=weight_format)
    together = matrix.times(rows, kernels)
    for begin, end in ((3, 9), (5, 38), (20, 70), *((row, row + 1) for row in range(70))):
        assert torch.equal(matrix.times(rows[begin:end], kernels), together[begin:end])


@pytest.mark.parametrize("weight_format", _FORMATS)
def test_scales_may_be_anything(kernels: Library, weight_format: WeightFormat) -> None:
    """Blocks of zeros, of one value, of very large and of tiny weights, whose fp16 scales are subnormal: each met by a
    row alone, and all by rows as uneven."""
    factors = torch.tensor([0.0, 1.0, 2.0**10, 2.0**-18, 1.0])
    weight = (_random(48, 5, 64, seed=1).float() * factors[:, None]).bfloat16()
    weight[:, 4] = weight[:, 4, :1]
    rows = _rows(7, 5, 64)
    rows[:5] *= torch.eye(5)[..., None].bfloat16()
    rows[5] *= factors.roll(2)[:, None].bfloat16()
    found = (
        KernelMatrix(weight.flatten(1), weight_format=weight_format).times(rows.flatten(1), kernels)[:, :48].double()
    )
    expected = _expected(rows.flatten(1), weight.flatten(1), weight_format)
    assert ((found - expected).norm(dim=1) <= 1e-5 * expected.norm(dim=1)).all()


def test_weights_and_rows_at_the_ends_of_their_range(kernels: Library) -> None:
    """Every byte and nibble at its most, with signs that let no sum cancel."""
    weight = torch.full((32, 1536), 127.0).bfloat16()
    weight[1::2] = -127.0
    rows = torch.full((6, 1536), 3.0).bfloat16()
    rows[1::2] = -3.0
    for weight_format in _FORMATS:
        _assert_right(kernels, rows, weight, weight_format)
        _assert_right(kernels, rows[:, :1].expand(-1, 1536) * _signs(1536), weight * _signs(1536), weight_format)


def _signs(count: int) -> torch.Tensor:
    return 1 - 2 * (torch.arange(count) * 7 % 5 % 2).bfloat16()


@pytest.mark.parametrize("weight_format", _FORMATS)
@pytest.mark.parametrize("strange", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 37, 159])
def test_an_activation_that_is_not_finite_shows_in_its_row_alone(
    kernels: Library, weight_format: WeightFormat, strange: float, place: int
) -> None:
    rows, matrix = _random(8, 160), KernelMatrix(_random(32, 160, seed=1), weight_format=weight_format)
    expected = matrix.times(rows, kernels)
    rows[3, place] = strange
    found = matrix.times(rows, kernels)
    assert not found[3].isfinite().any()
    others = [0, 1, 2, 4, 5, 6, 7]
    assert torch.equal(found[others], expected[others])


@pytest.mark.parametrize("weight_format", ["int8", "int4", "w8a8"])
def test_rows_too_small_for_an_inverse_count_as_zero(kernels: Library, weight_format: WeightFormat) -> None:
    rows = torch.full((2, 64), 1e-38, dtype=torch.bfloat16)
    assert not KernelMatrix(_random(32, 64), weight_format=weight_format).times(rows, kernels).any()


def test_the_check_at_start_passes_right_kernels_and_notices_wrong_ones(
    kernels: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert multiplies_right(kernels)
    multiply = kernels.multiply

    def careless(matrix: object, rows: int, *, stride: int, num_rows: int, out: int) -> None:
        multiply(matrix, rows, stride=stride, num_rows=max(1, num_rows - 1), out=out)  # type: ignore[arg-type]

    monkeypatch.setattr(kernels, "multiply", careless)
    monkeypatch.setattr(torch, "empty", torch.zeros)
    assert not multiplies_right(kernels)


def test_weights_of_four_bits_with_an_offset_are_found_again() -> None:
    """What was quantised so before, as the default model's weights were, is on the same steps again."""
    generator = torch.Generator().manual_seed(3)
    scales = (torch.rand(24, 4, 1, generator=generator) * 0.02 + 0.01).half().double()
    quanta = torch.randint(0, 16, (24, 4, 32), generator=generator)
    quanta[..., 0], quanta[..., 1] = 0, 15
    weight = ((quanta - 7.3) * scales).flatten(1).bfloat16()
    found = quantised(weight, "int4")
    assert torch.equal(found.quanta.view(24, 4, 32).long(), quanta)
    torch.testing.assert_close(dequantised(found), weight.float(), rtol=0.0, atol=0.001)


@pytest.mark.parametrize(("weight_format", "bound"), [("int8", 0.004), ("int4", 0.034)])
def test_no_weight_is_further_off_than_half_a_step(weight_format: WeightFormat, bound: float) -> None:
    groups = _random(64, 8, group_of(weight_format))
    weight = groups.float()
    off = (dequantised(quantised(groups.flatten(1), weight_format)).view_as(weight) - weight).abs().amax(-1)
    width = weight.abs().amax(-1) if weight_format == "int8" else weight.amax(-1) - weight.amin(-1)
    assert (off <= bound * width).all()


def test_a_rotated_group_is_no_further_off_than_half_a_step_of_all_its_inputs() -> None:
    """As a whole: what one rotated weight is off goes over all of them."""
    weight = _random(64, 8, 64)
    weight[0, 0, 5] = 100.0
    found = dequantised(quantised(weight.flatten(1), "w8a8")).view_as(weight)
    rotated_most = weight.float().abs().sum(-1) / 64
    assert ((found - weight.float()).norm(dim=-1) <= 64 * 0.5 * rotated_most / 127).all()


@pytest.mark.parametrize("weight_format", ["int8", "int4", "w8a8"])
def test_a_group_of_zeros_stays_zero(kernels: Library, weight_format: WeightFormat) -> None:
    weight = torch.zeros(16, 64, dtype=torch.bfloat16)
    assert not KernelMatrix(weight, weight_format=weight_format).times(_random(3, 64), kernels).any()


def test_a_product_of_no_rows_is_empty(kernels: Library) -> None:
    assert KernelMatrix(_random(16, 64)).times(_random(0, 64), kernels).shape == (0, 16)
