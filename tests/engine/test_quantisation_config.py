"""What a folder says of its quantised weights is read, or refused by the name of what is not supported."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from serving.engine.models.config import read_config
from serving.engine.models.problem import ModelFolderProblem
from tests.engine.quantised_folders import CONFIG, LAYOUTS, gptq_config


def _compressed(**changes: Any) -> dict[str, Any]:
    config = json.loads(json.dumps(LAYOUTS["compressed-int4"].config))
    config["config_groups"]["group_0"]["weights"] |= changes
    return config


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"quant_method": "bitsandbytes"}, "quant_method: 'bitsandbytes' is not supported; supported are awq"),
        ({"quant_method": "mxfp4"}, "quant_method: 'mxfp4' is not supported"),
        ({"quant_method": ["awq"]}, r"quant_method: \['awq'\] is not supported"),
        ("awq", "quantization_config: must be an object"),
        ({"quant_method": "awq", "bits": 3}, "bits: 3 is not supported; supported are 4"),
        ({"quant_method": "awq", "bits": 4, "version": "gemv"}, "version: 'gemv' is not supported; supported are gemm"),
        ({"quant_method": "awq", "bits": 4, "group_size": 48}, "group_size: must be -1 or a multiple of 32, not 48"),
        ({"quant_method": "awq"}, "bits: None is not supported; supported are 4"),
        ({"quant_method": "awq", "w_bit": 3}, "w_bit: 3 is not supported; supported are 4"),
        ({"quant_method": "awq", "w_bit": 4, "q_group_size": 48}, "q_group_size: must be -1 or a multiple of 32"),
        ({"quant_method": "awq", "bits": 4, "group_size": True}, "group_size: must be -1 or"),
        ({"quant_method": "awq", "bits": 4, "group_size": 0}, "group_size: must be -1 or"),
        (gptq_config(bits=3), "bits: 3 is not supported; supported are 4, 8"),
        (gptq_config(bits=True), "bits: True is not supported"),
        (gptq_config(checkpoint_format="marlin"), "checkpoint_format: 'marlin' is not supported"),
        (gptq_config(is_marlin_format=True), "is_marlin_format: the layout of Marlin's kernels is not supported"),
        (gptq_config(pack_dtype="int16"), "pack_dtype: 'int16' is not supported; supported are int32"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt: 'e5m2' is not supported"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "weight_block_size: must be two positive numbers"),
        ({"quant_method": "fp8", "weight_block_size": [128, 0]}, "weight_block_size: must be two positive numbers"),
        (_compressed(num_bits=2), "config_groups: group_0: weights: num_bits: 2 is not supported; supported are 4, 8"),
        (_compressed(type="float"), "num_bits: 4 is not supported; supported are 8"),
        (_compressed(strategy="token"), "strategy: 'token' is not supported"),
        (_compressed(group_size=None), "group_size: must be -1 or a multiple of 32, not None"),
        (_compressed() | {"format": "nvfp4-pack-quantized"}, "format: 'nvfp4-pack-quantized' is not supported"),
        (_compressed() | {"quantization_status": "initialized"}, "quantization_status: 'initialized' is not supported"),
        (_compressed() | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparsity_config: is not supported"),
        (_compressed() | {"transform_config": {"config_groups": {"R1": {}}}}, "transform_config: is not supported"),
        (_compressed() | {"config_groups": {}}, "config_groups: names no group of weights"),
        (_compressed() | {"config_groups": None}, "config_groups: is missing"),
        (_compressed() | {"config_groups": {"group_0": {"weights": None}}}, "config_groups: names no group of weights"),
    ],
)
def test_recipes_that_are_not_supported_are_refused_by_name(tmp_path: Path, config: Any, words: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": config}))
    with pytest.raises(ModelFolderProblem, match=words):
        read_config(tmp_path)


def test_weights_that_their_writer_calls_frozen_are_stored_as_others(tmp_path: Path) -> None:
    """Such as Meta-Llama-3.1-8B-Instruct-FP8 has, and others of the writer's first year."""
    found = []
    for status in ("compressed", "frozen"):
        config = LAYOUTS["compressed-fp8-tensor"].config | {"format": "naive-quantized", "quantization_status": status}
        (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": config}))
        found.append(read_config(tmp_path).quantisation)
    assert found[0] is not None
    assert found[0] == found[1]


def _read(folder: Path, config: Any) -> Any:
    (folder / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": config}))
    return read_config(folder).quantisation


def test_awq_is_read_by_the_names_that_its_own_tool_uses(tmp_path: Path) -> None:
    theirs = _read(tmp_path, {"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "version": "GEMM"})
    assert theirs == _read(tmp_path, {"quant_method": "awq", "bits": 4, "group_size": 64, "version": "gemm"})
    assert theirs.group_size == 64


def test_a_group_of_what_attention_computes_is_no_group_of_weights(tmp_path: Path) -> None:
    config = _compressed()
    alone = _read(tmp_path, config)
    config["config_groups"]["group_1"] = {"targets": ["LlamaAttention"], "weights": None, "input_activations": {}}
    assert _read(tmp_path, config | {"transform_config": {"config_groups": {}}}) == alone


def test_the_size_of_blocks_may_be_one_word(tmp_path: Path) -> None:
    for size in ([128, 64], "128x64"):
        config = json.loads(json.dumps(LAYOUTS["compressed-fp8-channel"].config))
        config["config_groups"]["group_0"]["weights"] |= {"strategy": "block", "block_structure": size}
        assert _read(tmp_path, config).block == (128, 64)


def test_several_recipes_in_one_folder_are_told_together(tmp_path: Path) -> None:
    config = _compressed()
    config["config_groups"]["group_1"] = LAYOUTS["compressed-fp8-channel"].config["config_groups"]["group_0"] | {
        "format": "float-quantized"
    }
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": config}))
    found = read_config(tmp_path).quantisation
    assert found is not None
    assert (found.text, found.group_size, found.quantises_activations) == ("compressed-tensors int4+fp8", None, True)
    assert dataclasses.replace(found, kinds=("fp8",), method="fp8").text == "fp8"
