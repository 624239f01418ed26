"""A product of the kernels is what plain arithmetic makes of it, in every format, and no row knows its company."""

from __future__ import annotations

import pytest
import torch

from serving.engine.kernels.library import Library
from serving.engine.kernels.loading import multiplies_right
from serving.engine.kernels.matrices import KernelMatrix
from serving.engine.kernels.quantised import WeightFormat, dequantised, quantised

_FORMATS: tuple[WeightFormat, ...] = ("bfloat16", "int8", "int4", "w8a8")


def _random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def _read(rows: torch.Tensor, weight_format: WeightFormat) -> torch.Tensor:
    """The rows as a product in this format reads them."""
    if weight_format != "w8a8":
        return rows.double()
    groups = torch.nn.functional.pad(rows, (0, -rows.shape[1] % 32)).float().view(len(rows), -1, 32)
    largest = groups.abs().amax(-1, keepdim=True)
    values = (groups * torch.full_like(largest, 127).div(largest)).nan_to_num().round()
    return (values.double() * (largest / 127)).flatten(1)[:, : rows.shape[1]]


def _meant(weight: torch.Tensor, weight_format: WeightFormat) -> torch.Tensor:
    whole = torch.nn.functional.pad(weight, (0, -weight.shape[1] % 32))
    meant = whole if weight_format == "bfloat16" else dequantised(quantised(whole, weight_format))
    return meant[:, : weight.shape[1]].double()


@pytest.mark.parametrize("weight_format", _FORMATS)
@pytest.mark.parametrize("num_rows", [1, 2, 5, 6, 7, 15, 16, 17, 31, 32, 33, 70])
def test_products_of_any_number_of_rows(kernels: Library, weight_format: WeightFormat, num_rows: int) -> None:
    rows, weight = _random(num_rows, 160), _random(144, 160, seed=1)
    found = KernelMatrix(weight, weight_format=weight_format).times(rows, kernels)
    expected = _read(rows, weight_format) @ _meant(weight, weight_format).T
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("weight_format", _FORMATS)
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(1, 1), (16, 32), (17, 33), (48, 31), (301, 64), (2100, 40)])
def test_products_of_any_shape(
    kernels: Library, weight_format: WeightFormat, num_outputs: int, num_inputs: int
) -> None:
    rows, weight = _random(9, num_inputs), _random(num_outputs, num_inputs, seed=1)
    found = KernelMatrix(weight, weight_format=weight_format).times(rows, kernels)
    expected = _read(rows, weight_format) @ _meant(weight, weight_format).T
    torch.testing.assert_close(found[:, :num_outputs].double(), expected, rtol=1e-5, atol=1e-4)
    assert not found[:, num_outputs:].any(), "outputs of padding are zero"


@pytest.mark.parametrize("weight_format", _FORMATS)
def test_a_row_is_the_same_bit_for_bit_in_any_company(kernels: Library, weight_format: WeightFormat) -> None:
    rows = _random(70, 1056)
    matrix = KernelMatrix(_random(64, 1056, seed=1), weight_format=weight_format)
    together = matrix.times(rows, kernels)
    for begin, end in ((0, 1), (3, 9), (5, 38), (20, 70), (69, 70)):
        assert torch.equal(matrix.times(rows[begin:end], kernels), together[begin:end])


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
    weight = _random(64, 256).float()
    off = (dequantised(quantised(weight.bfloat16(), weight_format)) - weight).view(64, -1, 32).abs().amax(-1)
    groups = weight.view(64, -1, 32)
    width = groups.abs().amax(-1) if weight_format == "int8" else groups.amax(-1) - groups.amin(-1)
    assert (off <= bound * width).all()


@pytest.mark.parametrize("weight_format", ["int8", "int4", "w8a8"])
def test_a_group_of_zeros_stays_zero(kernels: Library, weight_format: WeightFormat) -> None:
    weight = torch.zeros(16, 64, dtype=torch.bfloat16)
    assert not KernelMatrix(weight, weight_format=weight_format).times(_random(3, 64), kernels).any()


def test_a_product_of_no_rows_is_empty(kernels: Library) -> None:
    assert KernelMatrix(_random(16, 64)).times(_random(0, 64), kernels).shape == (0, 16)
