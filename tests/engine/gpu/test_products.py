"""Products with packed weights in Triton's interpreter beside fp64."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from serving.engine.kernels.gpu import products
from serving.engine.kernels.gpu.products import dequantise, multiply, refusal, tiling_for
from serving.engine.models.packed import Kind, PackedWeights, dequantised, packed_nibbles, tiled_product

pytestmark = pytest.mark.heavy

TOLERANCES = {torch.float16: 3e-3, torch.float32: 2e-5}


def _weights(
    kind: Kind,
    num_outputs: int,
    num_inputs: int,
    *,
    group: int,
    outputs_per_scale: int = 1,
    offsets: bool = False,
    scale_dtype: torch.dtype = torch.float16,
) -> PackedWeights:
    """Random weights of about unit size."""
    torch.manual_seed(num_outputs * 1000 + num_inputs)
    shape = (math.ceil(num_outputs / outputs_per_scale), math.ceil(num_inputs / group))
    if kind == "int4":
        quanta, largest = packed_nibbles(torch.randint(0, 16, (num_outputs, num_inputs)).to(torch.uint8)), 15
    elif kind == "int8":
        quanta, largest = torch.randint(-128, 128, (num_outputs, num_inputs)).to(torch.int8), 127
    else:
        quanta, largest = torch.randn(num_outputs, num_inputs).mul_(64).to(torch.float8_e4m3fn), 64
    scales = (torch.rand(shape) + 0.5).div_(largest).to(scale_dtype)
    return PackedWeights(
        kind, quanta, scales, torch.randn(shape).to(scale_dtype) if offsets else None, outputs_per_scale, group
    )


def _rows(num_rows: int, weights: PackedWeights, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(num_rows, weights.num_inputs).to(dtype)


def _assert_close(product: torch.Tensor, rows: torch.Tensor, weights: PackedWeights, bias: torch.Tensor | None) -> None:
    """Compare with fp64; a row's error is measured by how large its sum's terms are."""
    exact = dequantised(weights).double()
    expected = rows.double() @ exact.T
    sizes = (rows.double().square() @ exact.square().T).sqrt()
    if bias is not None:
        expected += bias.double()
        sizes += bias.double().abs()
    assert product.dtype == rows.dtype
    error = ((product.double() - expected).abs() / sizes.clamp(min=1e-6)).max()
    assert error < TOLERANCES[rows.dtype]


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("group", [32, 64, 128, 300])
@pytest.mark.parametrize(("kind", "offsets"), [("int4", True), ("int4", False), ("int8", False), ("int8", True)])
def test_few_rows_are_multiplied_by_grouped_integers(kind: Kind, offsets: bool, group: int, dtype: torch.dtype) -> None:
    weights = _weights(kind, 70, 300, group=group, offsets=offsets)
    for num_rows in (1, 5):
        rows = _rows(num_rows, weights, dtype)
        _assert_close(multiply(rows, weights), rows, weights, None)


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("outputs_per_scale", "group"), [(128, 128), (1, 300), (150, 300), (64, 64), (128, 32)])
def test_few_rows_are_multiplied_by_scaled_floats_of_8_bits(
    outputs_per_scale: int, group: int, dtype: torch.dtype
) -> None:
    weights = _weights("fp8", 150, 300, group=group, outputs_per_scale=outputs_per_scale, scale_dtype=torch.float32)
    rows = _rows(3, weights, dtype)
    _assert_close(multiply(rows, weights), rows, weights, None)


@pytest.mark.parametrize("num_rows", [16, 17, 33, 65, 130])
@pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])
def test_more_rows_are_multiplied_in_larger_tiles(kind: Kind, num_rows: int) -> None:
    for group in (32, 128):
        weights = _weights(kind, 100, 192, group=group, offsets=kind == "int4")
        rows = _rows(num_rows, weights, torch.float16)
        _assert_close(multiply(rows, weights), rows, weights, None)


@pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])
def test_many_rows_are_multiplied_by_weights_made_whole(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = _weights(kind, 300, 64, group=32, offsets=kind == "int4")
    bias = torch.randn(300)
    rows = _rows(products.MOST_TILED_ROWS + 1, weights, torch.float32)
    whole = multiply(rows, weights, bias)
    _assert_close(whole, rows, weights, bias)
    monkeypatch.setattr(products, "_PART_BYTES", 128 * 64 * 4)
    assert torch.allclose(multiply(rows, weights, bias), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("splits", [1, 2, 3, 8])
@pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])
def test_inputs_that_are_split_add_up_to_the_same(kind: Kind, splits: int) -> None:
    weights = _weights(kind, 65, 416, group=32, offsets=kind == "int4")
    rows, bias = _rows(3, weights, torch.float32), torch.randn(65)
    product = torch.full((3, 65), float("nan"))
    tiling = dataclasses.replace(tiling_for(3, weights, num_processors=1), inputs=64, splits=splits)
    products._multiply_tiled(rows, weights, bias, product, tiling)
    _assert_close(product, rows, weights, bias)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_a_bias_is_added(dtype: torch.dtype) -> None:
    weights = _weights("int4", 40, 64, group=32, offsets=True)
    rows, bias = _rows(2, weights, dtype), torch.randn(40).to(dtype)
    _assert_close(multiply(rows, weights, bias), rows, weights, bias)


def test_a_row_has_the_same_product_alone_as_among_sixteen() -> None:
    weights = _weights("int4", 70, 160, group=32, offsets=True)
    rows = _rows(16, weights, torch.float16)
    together = multiply(rows, weights)
    for index in (0, 7, 15):
        assert torch.equal(multiply(rows[index : index + 1], weights)[0], together[index])


def test_decoding_is_tiled_alike_for_one_to_sixteen_rows() -> None:
    weights = _weights("int4", 64, 4096, group=128)
    tilings = {tiling_for(num_rows, weights, num_processors=132) for num_rows in range(1, 17)}
    assert len(tilings) == 1
    assert tilings.pop().splits > 1


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(("kind", "outputs_per_scale"), [("int4", 1), ("int8", 1), ("fp8", 128), ("fp8", 1)])
def test_weights_are_made_whole_as_they_are_defined(kind: Kind, outputs_per_scale: int, dtype: torch.dtype) -> None:
    weights = _weights(kind, 140, 1060, group=32, outputs_per_scale=outputs_per_scale, offsets=kind != "fp8")
    whole = dequantise(weights, dtype)
    # A product and a sum may be rounded once or twice.
    assert torch.allclose(
        whole.float(), dequantised(weights).to(dtype).float(), rtol=2e-3 if dtype.itemsize == 2 else 1e-5
    )
    assert torch.equal(dequantise(weights, dtype, first=130, num_outputs=7), whole[130:137])


def test_all_floats_of_8_bits_mean_what_they_mean() -> None:
    quanta = torch.arange(256, dtype=torch.uint8)
    quanta = quanta[(quanta & 127) != 127].view(1, -1)  # without the two that are no numbers
    weights = PackedWeights("fp8", quanta.view(torch.float8_e4m3fn), torch.ones(1, 1), None, 1, quanta.shape[1])
    assert torch.equal(dequantise(weights, torch.float32), weights.quanta.float())
    assert torch.equal(multiply(torch.eye(quanta.shape[1]), weights)[:, 0], weights.quanta.float()[0])


def test_agrees_with_the_plain_definition() -> None:
    weights = _weights("int8", 64, 256, group=64)
    rows = _rows(4, weights, torch.float16)
    assert torch.allclose(multiply(rows, weights), tiled_product(rows, weights, None), rtol=5e-3, atol=2e-2)


def test_rows_may_lie_apart() -> None:
    weights = _weights("int8", 16, 64, group=32)
    wide = torch.randn(3, 200)
    assert torch.equal(multiply(wide[:, 10:74], weights), multiply(wide[:, 10:74].contiguous(), weights))


def test_groups_that_the_kernels_cannot_take_are_refused() -> None:
    assert refusal(_weights("int8", 4, 96, group=96)) is None
    odd = _weights("int8", 4, 96, group=24)
    assert "inputs_per_scale is 24" in str(refusal(odd))
    with pytest.raises(ValueError, match="inputs_per_scale is 24; it must be a power of two of at least 16"):
        multiply(torch.ones(1, 96), odd)


def test_weights_that_lie_apart_are_refused() -> None:
    weights = _weights("int8", 4, 64, group=32)
    apart = dataclasses.replace(weights, scales=weights.scales.t().contiguous().t())
    assert refusal(apart) == "scales are not contiguous"


def test_no_rows_are_no_work() -> None:
    weights = _weights("int8", 4, 64, group=32)
    assert multiply(torch.empty(0, 64), weights).shape == (0, 4)
