"""What folders have quantised is multiplied by the kernels for a GPU as it is elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from serving.engine.kernels.gpu.products import multiply, refusal
from serving.engine.models.config import read_config
from serving.engine.models.loader import load_weights
from serving.engine.models.matrices import JoinedMatrix
from serving.engine.models.packed import PackedMatrix, tiled_product
from serving.engine.models.weights import DenseWeights
from tests.engine.quantised_folders import LAYOUTS, quantise_folder, save_random_model

pytestmark = pytest.mark.heavy

_IN_TILES = {"fp8-small-blocks"}
"""What the kernels refuse: blocks of sizes that nobody publishes."""


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_is_multiplied_as_elsewhere(name: str, tmp_path: Path) -> None:
    folder = quantise_folder(save_random_model(tmp_path / "plain"), tmp_path / name, LAYOUTS[name])
    layer = load_weights(folder, read_config(folder), dtype=torch.float32, device=torch.device("cpu")).layers[0]
    assert isinstance(layer.feed_forward, DenseWeights)
    generator = torch.Generator().manual_seed(5)
    num_multiplied = 0
    for fused in (layer.qkv, layer.output, layer.feed_forward.gate_up, layer.feed_forward.down):
        for matrix in fused.parts if isinstance(fused, JoinedMatrix) else (fused,):
            if not isinstance(matrix, PackedMatrix):
                continue
            assert (refusal(matrix.weights) is None) == (name not in _IN_TILES)
            if name in _IN_TILES:
                continue
            for num_rows in (1, 20):
                rows = torch.randn(num_rows, matrix.weights.num_inputs, generator=generator)
                found = multiply(rows, matrix.weights, matrix.bias)
                torch.testing.assert_close(
                    found, tiled_product(rows, matrix.weights, matrix.bias), rtol=1e-4, atol=1e-4
                )
            num_multiplied += 1
    assert num_multiplied >= 3 or name in _IN_TILES
