"""What is read from a model folder, and which folders are refused, by the name of what is wrong."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from serving.engine.models.config import ModelConfig, read_config
from serving.engine.models.layer_config import ExpertsConfig
from serving.engine.models.loader import check_weights, load_weights
from serving.engine.models.problem import ModelFolderProblem
from serving.engine.models.weights import DecoderWeights, Matrix

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


_GELU = {"hidden_activation": "gelu_pytorch_tanh"}
_QWEN3_MOE: dict[str, Any] = {
    "architectures": ["Qwen3MoeForCausalLM"],
    "num_key_value_heads": 2,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
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


def _windows(config: ModelConfig) -> list[int | None]:
    return [config.layer(index).window for index in range(config.num_layers)]


def test_a_sliding_window_is_that_of_the_layers_that_have_it(tmp_path: Path) -> None:
    mistral = {"architectures": ["MistralForCausalLM"], "num_key_value_heads": 2}
    assert _windows(_read(tmp_path, **mistral, sliding_window=512)) == [512, 512]
    for window in (None, 2048, 4096, "absent"):
        config = _read(tmp_path, **mistral, sliding_window=window)
        assert (_windows(config), config.max_model_len, config.note) == ([None, None], 2048, "")
    assert _windows(_read(tmp_path, **mistral, sliding_window="absent", max_position_embeddings=8192)) == [4096] * 2
    qwen2 = {"architectures": ["Qwen2ForCausalLM"], "num_key_value_heads": 2, "sliding_window": 512}
    assert _windows(_read(tmp_path, **qwen2)) == [None, None]
    assert _windows(_read(tmp_path, **qwen2, use_sliding_window=True)) == [None, None]
    assert _windows(_read(tmp_path, **qwen2, use_sliding_window=True, max_window_layers=1)) == [None, 512]
    assert _windows(_read(tmp_path, **qwen2, use_sliding_window=True, max_window_layers=0)) == [512, 512]
    listed = ["sliding_attention", "full_attention"]
    assert _windows(_read(tmp_path, **qwen2, use_sliding_window=True, layer_types=listed)) == [512, None]
    qwen3_moe = _QWEN3_MOE | {"sliding_window": 512}
    assert _windows(_read(tmp_path, **qwen3_moe)) == [None, None]
    assert _windows(_read(tmp_path, **qwen3_moe, use_sliding_window=True)) == [512, 512]


def test_windows_are_where_gemma_has_them(tmp_path: Path) -> None:
    gemma2 = {"architectures": ["Gemma2ForCausalLM"], "num_hidden_layers": 4, "sliding_window": 64, **_GELU}
    assert _windows(_read(tmp_path, **gemma2)) == [64, None, 64, None]
    gemma3 = gemma2 | {"architectures": ["Gemma3ForCausalLM"], "num_hidden_layers": 7}
    config = _read(tmp_path, **gemma3)
    assert _windows(config) == [64] * 5 + [None, 64]
    assert [config.layer(index).has_local_rope for index in range(7)] == [True] * 5 + [False, True]
    assert _windows(_read(tmp_path, **gemma3, sliding_window_pattern=3)) == [64, 64, None] * 2 + [64]
    # A layer is a local one, with its own rotation, though no context exceeds its window.
    config = _read(tmp_path, **gemma3 | {"sliding_window": 2048})
    assert (_windows(config), config.layer(0).has_local_rope) == ([None] * 7, True)


def test_gemma_is_read_with_its_ways(tmp_path: Path) -> None:
    gemma2 = _read(tmp_path, architectures=["Gemma2ForCausalLM"], num_key_value_heads=2, head_dim=32, **_GELU)
    assert (gemma2.activation, gemma2.norm_adds_one, gemma2.norms_outputs) == ("gelu_tanh", True, True)
    assert (gemma2.embedding_scale, gemma2.attention_scale) == (8.0, 1 / 16)
    assert (gemma2.attention_softcap, gemma2.logit_softcap, gemma2.qk_norm) == (50.0, 30.0, False)
    assert gemma2.tie_word_embeddings
    assert gemma2.eos_token_ids == {1}
    assert gemma2.local_rope is None
    gemma3 = _read(
        tmp_path,
        architectures=["Gemma3ForCausalLM"],
        query_pre_attn_scalar=64,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
        **_GELU,
    )
    assert (gemma3.num_kv_heads, gemma3.head_dim, gemma3.qk_norm, gemma3.attention_scale) == (4, 256, True, 1 / 8)
    assert (gemma3.attention_softcap, gemma3.logit_softcap) == (None, None)
    assert (gemma3.rope.kind, gemma3.rope.theta, gemma3.rope.factor) == ("linear", 1e6, 8.0)
    assert gemma3.local_rope is not None
    assert (gemma3.local_rope.kind, gemma3.local_rope.theta) == ("default", 1e4)


def test_of_a_model_that_sees_images_the_part_that_speaks_is_read(tmp_path: Path) -> None:
    """As published, it leaves most of its fields to defaults."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, "sliding_window": 1024}
    whole = {"architectures": ["Gemma3ForConditionalGeneration"], "eos_token_id": [1, 106], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    config = read_config(tmp_path)
    assert (config.num_layers, config.num_heads, config.num_kv_heads, config.head_dim) == (34, 8, 4, 256)
    assert (config.vocab_size, config.max_model_len, config.eos_token_ids) == (262_208, 131_072, {1, 106})
    assert config.tensor_prefix == "language_model."
    assert "only the part of the model that reads and writes text" in config.note
    (tmp_path / "config.json").write_text(json.dumps(whole | {"text_config": None}))
    with pytest.raises(ModelFolderProblem, match="text_config: is missing"):
        read_config(tmp_path)


def test_phi3_rotates_long_sequences_otherwise(tmp_path: Path) -> None:
    longrope = {"type": "longrope", "short_factor": [1.0] * 6, "long_factor": [4.0] * 6}
    phi = {
        "architectures": ["Phi3ForCausalLM"],
        "original_max_position_embeddings": 512,
        "partial_rotary_factor": 0.75,
        "rope_scaling": longrope,
    }
    config = _read(tmp_path, **phi)
    assert (config.num_kv_heads, config.fused_projections, config.rope.rotary_dim(16)) == (4, True, 12)
    assert (config.rope.kind, config.rope.factor, config.rope.long_from) == ("longrope", 4.0, 512)
    assert config.rope.attention_factor == pytest.approx((1 + math.log(4) / math.log(512)) ** 0.5)
    for old_name in ("su", "yarn"):
        assert _read(tmp_path, **phi | {"rope_scaling": longrope | {"type": old_name}}).rope == config.rope
    short = _read(tmp_path, **phi, max_position_embeddings=512).rope
    assert (short.long_from, short.attention_factor, short.short_factors) == (None, 1.0, (1.0,) * 6)


def test_yarn_is_read_with_its_defaults(tmp_path: Path) -> None:
    rope = _read(tmp_path, rope_scaling=_YARN).rope
    assert (rope.kind, rope.factor, rope.original_max_position_embeddings) == ("yarn", 4.0, 2048)
    assert (rope.beta_fast, rope.beta_slow, rope.truncated) == (32.0, 1.0, True)
    assert rope.attention_factor == pytest.approx(0.1 * math.log(4) + 1)
    assert _read(tmp_path, rope_scaling=_YARN | {"attention_factor": 1.5}).rope.attention_factor == 1.5
    deepseek = _read(tmp_path, rope_scaling=_YARN | {"mscale": 0.5, "mscale_all_dim": 0.5, "truncate": False}).rope
    assert (deepseek.attention_factor, deepseek.truncated) == (1.0, False)


def test_experts_are_in_the_layers_that_have_them(tmp_path: Path) -> None:
    config = _read(tmp_path, **_QWEN3_MOE, num_hidden_layers=6, decoder_sparse_step=2, mlp_only_layers=[3])
    assert [config.layer(index).is_sparse for index in range(6)] == [False, True, False, False, False, True]
    assert config.experts == ExpertsConfig(num_experts=8, num_active=2, intermediate_size=32, normalised=False)
    renamed = {name: value for name, value in _QWEN3_MOE.items() if name != "num_experts"}
    assert _read(tmp_path, **renamed, num_local_experts=8).experts == config.experts
    mixtral = _read(tmp_path, architectures=["MixtralForCausalLM"], num_key_value_heads=2)
    assert mixtral.experts == ExpertsConfig(num_experts=8, num_active=2, intermediate_size=96, normalised=True)
    assert mixtral.rope.theta == 1e6
    assert all(mixtral.layer(index).is_sparse for index in range(2))


_PHI3 = {"architectures": ["Phi3ForCausalLM"]}
_SHORT_LONGROPE = {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [1.0] * 7}
_ODD_LONGROPE = {"type": "longrope", "short_factor": [1.0] * 7 + [0], "long_factor": [1.0] * 8}
_GEMMA3 = {"architectures": ["Gemma3ForCausalLM"], **_GELU}
_DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}
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
        ({"hidden_act": ["silu"]}, r"hidden_act: \['silu'\] is not supported; supported is silu"),
        ({"hidden_size": "absent"}, "hidden_size: is missing"),
        ({"hidden_size": "64"}, "hidden_size: must be an integer from 1 to 2147483647, not '64'"),
        ({"hidden_size": True}, "hidden_size: must be an integer from 1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers: must be an integer from 1"),
        ({"num_hidden_layers": 10**30}, "num_hidden_layers: must be an integer from 1 .* not 1000000"),
        ({"num_hidden_layers": 10**300}, "num_hidden_layers: must be .* not one with more than 30 digits"),
        ({"rms_norm_eps": "absent"}, "rms_norm_eps: is missing"),
        ({"rms_norm_eps": -1}, "rms_norm_eps: must be a positive number"),
        ({"num_attention_heads": 5}, "num_attention_heads: 5 does not divide hidden_size 64"),
        ({"num_key_value_heads": 3}, "num_key_value_heads: 3 does not divide num_attention_heads 4"),
        ({"architectures": ["Qwen2ForCausalLM"]}, "num_key_value_heads: is missing"),
        ({"head_dim": 15}, "head_dim: must be even"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings: must be true or false"),
        ({"rope_scaling": _DYNAMIC}, "rope_type: 'dynamic' is not supported; .* default, linear, llama3, yarn"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_scaling: factor: is missing"),
        ({"rope_scaling": _YARN | {"beta_slow": 32}}, "beta_fast: must be above beta_slow 32"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor: is missing"),
        ({"rope_scaling": _LLAMA3}, "high_freq_factor: must be above low_freq_factor 4"),
        ({"rope_scaling": "linear"}, "rope_scaling: must be an object"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor: only 1 is supported"),
        ({**_PHI3, "partial_rotary_factor": 0.7}, "partial_rotary_factor: must rotate an even number of a head's 16"),
        ({**_PHI3, "partial_rotary_factor": 1.5}, "partial_rotary_factor: must rotate"),
        ({**_PHI3, "rope_scaling": {"type": ["su"]}}, r"rope_type: \['su'\] is not supported"),
        ({**_PHI3, "rope_scaling": {"type": "linear"}}, "rope_type: 'linear' is not supported; .* default, longrope"),
        ({**_PHI3, "rope_scaling": {"type": "longrope"}}, "long_factor: is missing"),
        ({**_PHI3, "rope_scaling": _SHORT_LONGROPE}, "long_factor: must be a list of 8 positive numbers, not 7 values"),
        ({**_PHI3, "rope_scaling": _ODD_LONGROPE}, "short_factor: must be a list of 8 positive numbers"),
        ({**_GEMMA3, "hidden_activation": "gelu"}, "hidden_activation: 'gelu' is not supported; .* gelu_pytorch_tanh"),
        ({**_GEMMA3, "query_pre_attn_scalar": 0}, "query_pre_attn_scalar: must be a positive number, not 0"),
        ({**_GEMMA3, "attn_logit_softcapping": 50.0}, "attn_logit_softcapping: is not supported of this family"),
        ({**_GEMMA3, "use_bidirectional_attention": True}, "use_bidirectional_attention: is not supported"),
        ({**_GEMMA3, "rope_parameters": {"sliding_attention": _YARN}}, "sliding_attention: rope_type: 'yarn' is not"),
        (
            {**_GEMMA3, "rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 2.0}}},
            "rope_type: 'linear' is not supported of layers with a window",
        ),
        ({**_QWEN3_MOE, "num_experts": "absent"}, "num_local_experts: is missing"),
        ({**_QWEN3_MOE, "num_experts_per_tok": 9}, "num_experts_per_tok: must be at most num_experts 8, not 9"),
        ({**_QWEN3_MOE, "mlp_only_layers": [-1]}, "mlp_only_layers: must be a list of layers' numbers"),
        ({**_QWEN3_MOE, "moe_intermediate_size": "absent"}, "moe_intermediate_size: is missing"),
        ({"quantization_config": {"bits": 4}}, "quantization_config: quant_method: None is not supported"),
        ({**_GEMMA3, "layer_types": ["linear_attention"]}, "layer_types: .* is not supported"),
        ({**_GEMMA3, "layer_types": ["full_attention"]}, "layer_types: must name the 2 layers, not 1"),
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


@pytest.mark.heavy
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


@pytest.mark.heavy
def test_what_follows_from_other_weights_is_not_in_the_way(tmp_path: Path, tiny_model: Callable[[str], Path]) -> None:
    folder = Path(shutil.copytree(tiny_model("llama-tied"), tmp_path / "model"))
    redundant = {"lm_head.weight": torch.ones(301, 64), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}
    _rewrite(folder, lambda tensors: tensors.update(redundant))
    check_weights(folder, read_config(folder))


@pytest.mark.heavy
def test_a_truncated_file_is_refused(copied: Path) -> None:
    path = copied / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])
    with pytest.raises(ModelFolderProblem, match="cannot be read as safetensors"):
        check_weights(copied, read_config(copied))


@pytest.mark.heavy
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


@pytest.mark.heavy
def test_sharded_weights_equal_those_of_one_file(copied: Path) -> None:
    config = read_config(copied)
    options: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}
    whole = load_weights(copied, config, **options)
    _shard(copied)
    sharded = load_weights(copied, config, **options)
    assert torch.equal(sharded.vocabulary.plain(), whole.vocabulary.plain())
    for one, other in zip(_matrices(sharded), _matrices(whole), strict=True):
        assert torch.equal(one.plain(), other.plain())


def _matrices(weights: DecoderWeights) -> list[Matrix]:
    """Those of all layers."""
    found: list[Matrix] = []

    def note(matrix: Matrix) -> Matrix:
        found.append(matrix)
        return matrix

    for layer in weights.layers:
        layer.mapped(note)
    assert len(found) == 4 * len(weights.layers)
    return found


@pytest.mark.heavy
def test_a_missing_shard_is_refused_by_name(copied: Path) -> None:
    _shard(copied)
    (copied / "model-2.safetensors").unlink()
    with pytest.raises(ModelFolderProblem, match=r"model-2\.safetensors: there is no such file"):
        check_weights(copied, read_config(copied))


@pytest.mark.heavy
def test_an_index_that_leaves_the_folder_is_refused(copied: Path) -> None:
    weight_map = _shard(copied)
    _write_index(copied, {**weight_map, "other": "../secret.safetensors"})
    with pytest.raises(ModelFolderProblem, match="not a file of this folder"):
        check_weights(copied, read_config(copied))
