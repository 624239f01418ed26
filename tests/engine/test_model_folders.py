"""What is read from a model folder, and which folders are refused, by the name of what is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from serving.engine.models.config import ModelConfig, read_config
from serving.engine.models.loader import check_weights, load_weights
from serving.engine.models.problem import ModelFolderProblem

_LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}


def _read(folder: Path, generation: dict[str, Any] | None = None, **changes: Any) -> ModelConfig:
    values = {name: value for name, value in {**_LLAMA, **changes}.items() if value != "absent"}
    (folder / "config.json").write_text(json.dumps(values))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return read_config(folder)


def test_a_plain_llama_is_read_with_its_defaults(tmp_path: Path) -> None:
    config = _read(tmp_path)
    assert (config.num_kv_heads, config.head_dim, config.max_model_len) == (4, 16, 2048)
    assert (config.rope.kind, config.rope.theta) == ("default", 10_000.0)
    assert not any((config.tie_word_embeddings, config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm))
    assert config.eos_token_ids == frozenset()


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 5e5, "factor": 4.0}},
    ],
)
def test_both_forms_of_rotary_settings_mean_the_same(tmp_path: Path, changes: dict[str, Any]) -> None:
    rope = _read(tmp_path, **changes).rope
    assert (rope.kind, rope.theta, rope.factor) == ("linear", 5e5, 4.0)


def test_ends_are_taken_from_both_files(tmp_path: Path) -> None:
    config = _read(tmp_path, {"eos_token_id": [7, 9]}, eos_token_id=2)
    assert config.eos_token_ids == {2, 7, 9}


def test_families_differ_in_biases_and_norms(tmp_path: Path) -> None:
    qwen2 = _read(tmp_path, architectures=["Qwen2ForCausalLM"], num_key_value_heads=2)
    assert (qwen2.qkv_bias, qwen2.output_bias, qwen2.qk_norm) == (True, False, False)
    qwen3 = _read(tmp_path, architectures=["Qwen3ForCausalLM"], num_key_value_heads=2)
    assert (qwen3.qkv_bias, qwen3.qk_norm, qwen3.head_dim) == (False, True, 128)


def test_a_sliding_window_limits_the_context_and_says_so(tmp_path: Path) -> None:
    mistral = {"architectures": ["MistralForCausalLM"], "num_key_value_heads": 2}
    limited = _read(tmp_path, **mistral, sliding_window=512)
    assert limited.max_model_len == 512
    assert "sliding window of 512 tokens (2048 without it)" in limited.note
    for window in (None, 2048, 4096):
        assert (_read(tmp_path, **mistral, sliding_window=window).max_model_len, limited.note == "") == (2048, False)


def test_a_sliding_window_that_no_layer_uses_limits_nothing(tmp_path: Path) -> None:
    qwen2 = {"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 2, "sliding_window": 512}
    assert _read(tmp_path, **qwen2).max_model_len == 2048
    assert _read(tmp_path, **qwen2, use_sliding_window=True, max_window_layers=2).max_model_len == 2048
    assert _read(tmp_path, **qwen2, use_sliding_window=True, max_window_layers=1).max_model_len == 512


_YARN = {"rope_type": "yarn", "factor": 4.0}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"architectures": ["GPT2LMHeadModel"]},
            "architectures: GPT2LMHeadModel is not supported; supported are Llama",
        ),
        ({"architectures": "absent"}, "architectures: must be a list of one name"),
        ({"hidden_act": "gelu"}, "hidden_act: 'gelu' is not supported; supported is silu"),
        ({"hidden_size": "absent"}, "hidden_size: is missing"),
        ({"hidden_size": "64"}, "hidden_size: must be a positive integer, not '64'"),
        ({"hidden_size": True}, "hidden_size: must be a positive integer"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: must be a positive integer"),
        ({"rms_norm_eps": "absent"}, "rms_norm_eps: is missing"),
        ({"rms_norm_eps": -1}, "rms_norm_eps: must be a positive number"),
        ({"num_attention_heads": 5}, "num_attention_heads: 5 does not divide hidden_size 64"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: 3 does not divide num_attention_heads 4"),
        ({"architectures": ["Qwen2ForCausalLM"]}, "num_key_value_heads: is missing"),
        ({"head_dim": 15}, "head_dim: must be even"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: must be true or false"),
        ({"rope_scaling": _YARN}, "rope_type: 'yarn' is not supported; supported are default, linear, llama3"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor: is missing"),
        ({"rope_scaling": _LLAMA3}, "high_freq_factor: must be above low_freq_factor 4"),
        ({"rope_scaling": "linear"}, "rope_scaling: must be an object"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor: only 1 is supported"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: quantised weights are not supported"),
        ({"layer_types": ["linear_attention"]}, "layer_types: .* is not supported"),
        ({"eos_token_id": 100}, "eos_token_id: 100 is not a token of the vocabulary"),
        ({"eos_token_id": "</s>"}, "eos_token_id: '</s>' is not a token"),
    ],
)
def test_a_configuration_that_cannot_be_served_is_refused_by_name(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelFolderProblem, match=words) as caught:
        _read(tmp_path, **changes)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(("content", "words"), [(None, "no such file"), ("{", "cannot be read"), ("[]", "not a JSON")])
def test_a_config_file_that_is_none_is_refused(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelFolderProblem, match=f"config.json: .*{words}"):
        read_config(tmp_path)


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFolderProblem, match="there is none"):
        read_config(tmp_path / "nowhere")


@pytest.fixture
def copied(tmp_path: Path, tiny_model: Callable[[str], Path]) -> Path:
    """A folder of its own with a tiny model, to be broken."""
    return Path(shutil.copytree(tiny_model("llama"), tmp_path / "model"))


def _rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


_NORM = "model.layers.1.input_layernorm.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensors: tensors.pop(_NORM), f"{_NORM}: this tensor is missing"),
        (lambda tensors: tensors.update({_NORM: torch.ones(3)}), rf"{_NORM}: has shape \[3\], not \[64\]"),
        (lambda tensors: tensors.update({_NORM: torch.ones(64, dtype=torch.int8)}), f"{_NORM}: has dtype I8"),
        (lambda tensors: tensors.update(extra=torch.ones(1)), "extra: this tensor is not expected"),
    ],
)
def test_weights_that_do_not_fit_are_refused_by_name(
    copied: Path, change: Callable[[dict[str, torch.Tensor]], object], words: str
) -> None:
    _rewrite(copied, change)
    with pytest.raises(ModelFolderProblem, match=words):
        check_weights(copied, read_config(copied))
    with pytest.raises(ModelFolderProblem, match=words):
        load_weights(copied, read_config(copied), dtype=torch.float32, device=torch.device("cpu"))


def test_what_follows_from_other_weights_is_not_in_the_way(tmp_path: Path, tiny_model: Callable[[str], Path]) -> None:
    folder = Path(shutil.copytree(tiny_model("llama-tied"), tmp_path / "model"))
    redundant = {"lm_head.weight": torch.ones(301, 64), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    _rewrite(folder, lambda tensors: tensors.update(redundant))
    check_weights(folder, read_config(folder))


def test_a_truncated_file_is_refused(copied: Path) -> None:
    path = copied / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelFolderProblem, match="cannot be read as safetensors"):
        check_weights(copied, read_config(copied))


def test_a_folder_without_weights_is_refused(copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    with pytest.raises(ModelFolderProblem, match=r"neither this file nor model\.safetensors\.index\.json"):
        check_weights(copied, read_config(copied))


def _shard(folder: Path) -> dict[str, str]:
    """Split the weights into two files and an index; returns the index's map."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    halves = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, members in halves.items():
        save_file({name: tensors[name] for name in members}, folder / file)
    weight_map = {name: file for file, members in halves.items() for name in members}
    _write_index(folder, weight_map)
    return weight_map


def _write_index(folder: Path, weight_map: dict[str, str]) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_sharded_weights_equal_those_of_one_file(copied: Path) -> None:
    config = read_config(copied)
    options: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}
    whole = load_weights(copied, config, **options)
    _shard(copied)
    sharded = load_weights(copied, config, **options)
    assert torch.equal(sharded.vocabulary, whole.vocabulary)
    for one, other in zip(sharded.layers, whole.layers, strict=True):
        assert torch.equal(one.qkv, other.qkv)
        assert torch.equal(one.gate_up, other.gate_up)
        assert torch.equal(one.down, other.down)


def test_a_missing_shard_is_refused_by_name(copied: Path) -> None:
    _shard(copied)
    (copied / "model-2.safetensors").unlink()
    with pytest.raises(ModelFolderProblem, match=r"model-2\.safetensors: there is no such file"):
        check_weights(copied, read_config(copied))


def test_an_index_that_leaves_the_folder_is_refused(copied: Path) -> None:
    weight_map = _shard(copied)
    _write_index(copied, {**weight_map, "other": "../secret.safetensors"})
    with pytest.raises(ModelFolderProblem, match="not a file of this folder"):
        check_weights(copied, read_config(copied))
