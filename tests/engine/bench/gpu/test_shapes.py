"""Made-up models: their shapes, and that what goes through them stays in size."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from serving.engine.bench.gpu.shapes import SHAPES, MadeUpWeights, WeightKind, packed_weights, write_shape
from serving.engine.models.config import read_config
from serving.engine.models.packed import Kind, PackedMatrix, dequantised
from serving.engine.models.weights import DenseWeights, PlainMatrix

CPU = torch.device("cpu")


@pytest.mark.parametrize(("name", "billions"), [("1b", 1.24), ("8b", 8.03)])
def test_shapes_have_as_many_weights_as_their_names_say(name: str, billions: float, tmp_path: Path) -> None:
    from serving.engine.models.layout import expected_tensors

    config = read_config(write_shape(name, tmp_path))
    total = sum(torch.Size(shape).numel() for shape in expected_tensors(config).values())
    assert total / 1e9 == pytest.approx(billions, abs=0.01)


@pytest.mark.parametrize("kind", ["int4", "int8", "fp8"])
def test_packed_weights_are_of_the_size_that_products_need(kind: Kind) -> None:
    torch.manual_seed(0)
    weights = dequantised(packed_weights(kind, (256, 512), CPU))
    assert float(weights.std()) == pytest.approx(512**-0.5, rel=0.05)
    assert abs(float(weights.mean())) < 0.1 * 512**-0.5


@pytest.mark.parametrize("kind", ["plain", "int4", "fp8"])
def test_weights_are_packed_in_layers_and_plain_in_the_output_layer(kind: WeightKind, tmp_path: Path) -> None:
    config = read_config(write_shape("tiny", tmp_path))
    weights = MadeUpWeights(kind)(tmp_path, config, dtype=torch.float32, device=CPU)
    expected = PlainMatrix if kind == "plain" else PackedMatrix
    (layer,) = weights.layers
    feed_forward = layer.feed_forward
    assert isinstance(feed_forward, DenseWeights)
    for matrix in (layer.qkv, layer.output, feed_forward.gate_up, feed_forward.down):
        assert isinstance(matrix, expected)
    assert isinstance(weights.vocabulary, PlainMatrix)
    rows = torch.randn(64, config.hidden_size)
    products = layer.qkv.times(rows)
    assert products.shape == (64, (config.num_heads + 2 * config.num_kv_heads) * config.head_dim)
    assert float(products.std()) == pytest.approx(1, rel=0.3)


def test_the_same_weights_come_of_the_same_shape(tmp_path: Path) -> None:
    config = read_config(write_shape("tiny", tmp_path))
    first, second = (MadeUpWeights()(tmp_path, config, dtype=torch.float32, device=CPU) for _ in range(2))
    assert torch.equal(first.embedding, second.embedding)


def test_every_shape_is_one_that_can_be_served(tmp_path: Path) -> None:
    for name in SHAPES:
        assert read_config(write_shape(name, tmp_path)).note == ""
