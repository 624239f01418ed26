"""Weights in fewer bits mean scale · quantum + offset, in whatever tiles they are unpacked, however they are fused."""

from __future__ import annotations

import pytest
import torch

from serving.engine.kernels.quantised import rounded_weights
from serving.engine.models import packed
from serving.engine.models.matrices import JoinedMatrix, joined
from serving.engine.models.packed import (
    Kind,
    PackedMatrix,
    PackedWeights,
    dequantised,
    narrowed,
    packed_nibbles,
    tiled_product,
    unpacked_nibbles,
    unpacked_quanta,
)
from serving.engine.models.quantised_weights import in_format
from serving.engine.models.weights import DecoderWeights, DenseWeights, LayerWeights, Matrix, PlainMatrix


def _weights(kind: Kind, outputs: int, inputs: int, block: tuple[int, int], *, seed: int = 0) -> PackedWeights:
    generator = torch.Generator().manual_seed(seed)
    scales = torch.rand(-(-outputs // block[0]), -(-inputs // block[1]), generator=generator) + 0.5
    if kind == "fp8":
        quanta = torch.randn(outputs, inputs, generator=generator).to(torch.float8_e4m3fn)
        return PackedWeights("fp8", quanta, scales, None, *block)
    if kind == "int8":
        quanta = torch.randint(-128, 128, (outputs, inputs), generator=generator, dtype=torch.int8)
        return PackedWeights("int8", quanta, scales.half(), None, *block)
    quanta = torch.randint(0, 256, (outputs, inputs // 2), generator=generator, dtype=torch.uint8)
    return PackedWeights("int4", quanta, scales.half(), (-8 * scales).half(), *block)


def _one_by_one(weights: PackedWeights) -> torch.Tensor:
    """Every weight by the definition."""
    found = torch.empty(weights.num_outputs, weights.num_inputs)
    for output in range(weights.num_outputs):
        for number in range(weights.num_inputs):
            place = output // weights.outputs_per_scale, number // weights.inputs_per_scale
            if weights.kind == "int4":
                quantum = float(weights.quanta[output, number // 2] >> 4 * (number % 2) & 15)
            else:
                quantum = float(weights.quanta[output, number])
            offset = 0.0 if weights.offsets is None else float(weights.offsets[place])
            found[output, number] = float(weights.scales[place]) * quantum + offset
    return found


_CASES: list[tuple[Kind, int, int, tuple[int, int]]] = [
    ("int4", 5, 64, (1, 32)),
    ("int4", 3, 90, (1, 32)),
    ("int8", 4, 33, (1, 32)),
    ("int8", 4, 33, (1, 33)),
    ("fp8", 7, 20, (3, 8)),
    ("fp8", 4, 10, (4, 10)),
    ("fp8", 4, 10, (128, 128)),
]


@pytest.mark.parametrize(("kind", "outputs", "inputs", "block"), _CASES)
def test_every_weight_is_scale_times_quantum_plus_offset(
    kind: Kind, outputs: int, inputs: int, block: tuple[int, int]
) -> None:
    weights = _weights(kind, outputs, inputs, block)
    whole = dequantised(weights)
    assert torch.equal(whole, _one_by_one(weights))
    assert torch.equal(dequantised(weights, 1, 3), whole[1:3])
    assert weights.num_bytes == sum(
        part.nbytes for part in (weights.quanta, weights.scales, weights.offsets) if part is not None
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_does_not_depend_on_how_many_weights_are_unpacked_at_once(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = _weights("fp8", 100, 64, (24, 40))
    rows, bias = torch.randn(5, 64).to(dtype), torch.randn(100).to(dtype)
    expected = rows.double() @ dequantised(weights).to(dtype).double().T + bias.double()
    for size in (1, 64 * 7, 1 << 22):
        monkeypatch.setattr(packed, "_TILE_WEIGHTS", size)
        found = tiled_product(rows, weights, bias)
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, rtol=2e-2 if dtype.itemsize == 2 else 1e-5, atol=2e-2)
        whole = PackedMatrix(weights, bias, dtype).plain()
        assert torch.equal(whole, dequantised(weights).to(dtype))


def test_an_order_says_which_inputs_the_weights_belong_to() -> None:
    weights = _weights("int4", 6, 64, (1, 32))
    order = torch.randperm(64, generator=torch.Generator().manual_seed(3))
    matrix = PackedMatrix(weights, None, torch.float32, order)
    plain = matrix.plain()
    assert torch.equal(plain[:, order], dequantised(weights))
    rows = torch.randn(4, 64)
    torch.testing.assert_close(matrix.times(rows), rows @ plain.T)


def test_nibbles_are_packed_low_first() -> None:
    quanta = torch.arange(16, dtype=torch.uint8).view(2, 8)
    assert packed_nibbles(quanta)[0].tolist() == [0x10, 0x32, 0x54, 0x76]
    assert torch.equal(unpacked_nibbles(packed_nibbles(quanta)), quanta)


def test_scales_take_two_bytes_only_where_those_hold_them() -> None:
    assert narrowed(torch.tensor([0.5, -8.25])).dtype == torch.float16
    assert narrowed(torch.tensor([0.5, 1 / 3])).dtype == torch.float32
    assert narrowed(torch.tensor([1e6]).bfloat16()).dtype == torch.float32


@pytest.mark.parametrize(
    ("parts", "outputs_per_scale"),
    [
        ([(128, (128, 32)), (64, (128, 32))], 128),
        ([(192, (128, 32)), (64, (128, 32))], 64),
        ([(6, (6, 64)), (4, (4, 64)), (4, (4, 64))], 2),
        ([(5, (1, 64)), (3, (1, 64))], 1),
    ],
)
def test_fused_floats_keep_their_scales(parts: list[tuple[int, tuple[int, int]]], outputs_per_scale: int) -> None:
    matrices = [
        PackedMatrix(_weights("fp8", outputs, 64, block, seed=seed), torch.full((outputs,), float(seed)), torch.float32)
        for seed, (outputs, block) in enumerate(parts)
    ]
    whole = joined(matrices)
    assert isinstance(whole, PackedMatrix)
    assert whole.weights.outputs_per_scale == outputs_per_scale
    assert torch.equal(whole.plain(), torch.cat([matrix.plain() for matrix in matrices]))
    assert whole.bias is not None
    assert whole.bias.tolist() == [float(seed) for seed, (outputs, _) in enumerate(parts) for _ in range(outputs)]


def test_what_is_kept_differently_is_fused_all_the_same() -> None:
    four, eight = _weights("int4", 6, 64, (1, 32)), _weights("int8", 4, 64, (1, 32))
    parts: list[Matrix] = [
        PackedMatrix(four, None, torch.float32),
        PackedMatrix(eight, None, torch.float32),
        PlainMatrix(torch.randn(3, 64)),
    ]
    whole = joined(parts)
    assert isinstance(whole, JoinedMatrix)
    assert whole.bias is None
    assert whole.num_bytes == sum(part.num_bytes for part in parts)
    rows = torch.randn(2, 64)
    torch.testing.assert_close(whole.times(rows), rows @ whole.plain().T)
    assert torch.equal(whole.plain(), torch.cat([part.plain() for part in parts]))
    assert joined(parts[:1]) is parts[0]
    with pytest.raises(ValueError, match="some have none"):
        joined([PlainMatrix(torch.ones(2, 4)), PlainMatrix(torch.ones(2, 4), torch.ones(2))])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"quanta": torch.zeros(4, 64)}, r"quanta of int8 are torch\.int8, not torch\.float32"),
        ({"scales": torch.zeros(4, 3)}, r"scales have shape \[4, 3\], not \[4, 2\]"),
        ({"offsets": torch.zeros(1, 2)}, r"offsets have shape \[1, 2\], not \[4, 2\]"),
        ({"outputs_per_scale": 2}, "int8 has scales of one output each, not of 2"),
        ({"inputs_per_scale": 0}, "a scale is of 1 by 0 weights"),
    ],
)
def test_what_does_not_fit_together_is_refused(change: dict[str, object], words: str) -> None:
    whole = _weights("int8", 4, 64, (1, 32))
    fields = {name: getattr(whole, name) for name in PackedWeights.__slots__} | change
    with pytest.raises(ValueError, match=words):
        PackedWeights(**fields)


def _decoder(hidden: int) -> DecoderWeights:
    generator = torch.Generator().manual_seed(2)

    def matrix(outputs: int, inputs: int) -> Matrix:
        return PlainMatrix(torch.randn(outputs, inputs, generator=generator).bfloat16(), torch.ones(outputs).bfloat16())

    layer = LayerWeights(
        input_norm=torch.ones(hidden),
        qkv=matrix(48, hidden),
        query_norm=None,
        key_norm=None,
        output=matrix(hidden, 32),
        mlp_norm=torch.ones(hidden),
        feed_forward=DenseWeights(matrix(60, hidden), matrix(hidden, 30)),
    )
    return DecoderWeights(
        embedding=torch.ones(20, hidden), layers=(layer,), final_norm=torch.ones(hidden), vocabulary=matrix(20, hidden)
    )


@pytest.mark.parametrize("hidden", [64, 76])
def test_weights_made_in_fewer_bits_are_kept_in_them_and_mean_what_the_kernels_mean(hidden: int) -> None:
    weights = _decoder(hidden)
    assert in_format(weights, "bfloat16").layers[0].qkv is weights.layers[0].qkv
    for weight_format, vocabulary in (("int8", "int8"), ("int4", "int8")):
        found = in_format(weights, weight_format)
        pairs = [(found.layers[0].qkv, weights.layers[0].qkv, weight_format)]
        pairs += [(found.vocabulary, weights.vocabulary, vocabulary)]
        for matrix, plain, kept_as in pairs:
            assert isinstance(matrix, PackedMatrix)
            assert matrix.weights.kind == kept_as
            expected = rounded_weights(plain.plain(), kept_as)[:, :hidden]
            assert torch.equal(dequantised(matrix.weights), expected)
            assert torch.equal(matrix.plain(), expected.bfloat16())
            assert matrix.bias is plain.bias
        assert found.num_bytes < weights.num_bytes * (0.6 if weight_format == "int8" else 0.5)
    rotated = in_format(weights, "w8a8").layers[0].qkv
    assert isinstance(rotated, PlainMatrix)
    assert torch.equal(rotated.weight, rounded_weights(weights.layers[0].qkv.plain(), "w8a8")[:, :hidden].bfloat16())


def test_quanta_of_some_outputs_can_be_had_alone() -> None:
    for kind, outputs, inputs, block in _CASES:
        weights = _weights(kind, outputs, inputs, block)
        assert unpacked_quanta(weights).shape == (outputs, inputs)
        assert unpacked_quanta(weights, 1, 3).shape == (2, inputs)
