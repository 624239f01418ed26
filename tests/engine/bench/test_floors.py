"""What a decoder must read and compute, by hand."""

from __future__ import annotations

import dataclasses

import pytest

from serving.engine.bench.floors import DecoderCost, decoder_cost, floor_ms, limit_tokens_per_second
from serving.engine.bench.limits import Limits, LimitsProbe, median_limits
from serving.engine.bench.loads import EngineLoad
from serving.engine.models.config import ModelConfig, RopeConfig
from serving.engine.models.layer_config import ExpertsConfig, LayerConfig

COST = DecoderCost(
    weight_bytes=2_000_000_000, kv_bytes_per_token=1_000_000, layer_weights=9 * 10**8, output_weights=10**8
)
LOAD = EngineLoad(num_requests=4, max_running=4, prompt_tokens=(50, 150), output_tokens=100)


def test_weights_are_read_once_a_step_and_keys_and_values_once_a_position() -> None:
    limits = Limits(bandwidth_gb_per_second=10, matmul_gflops=1)
    assert floor_ms(COST, limits, batch=1, context_tokens=0) == 200
    assert floor_ms(COST, limits, batch=10, context_tokens=100) == 300


@pytest.mark.parametrize(
    ("bandwidth", "gflops", "expected"),
    [(10, 1e9, 1 / (0.65e9 / 10e9)), (1e9, 1000, 1 / (2 * 1.9e9 / 1e12))],
    ids=["memory-bound", "compute-bound"],
)
def test_limit_of_a_load_is_the_nearer_roof(bandwidth: float, gflops: float, expected: float) -> None:
    limits = Limits(bandwidth_gb_per_second=bandwidth, matmul_gflops=gflops)
    assert limit_tokens_per_second(COST, limits, LOAD) == pytest.approx(expected, rel=0.01)


def test_weights_are_counted_by_layer_and_output_and_a_position_by_layer_and_head() -> None:
    tied, untied = (decoder_cost(_config(tied=tied), weight_bytes=5, kv_bytes=2) for tied in (True, False))
    assert tied == untied
    attention, mlp, norms = 64 * (64 + 2 * 32) + 64 * 64, 3 * 64 * 128, 2 * 64
    assert tied.layer_weights == 3 * (attention + mlp + norms)
    assert tied.output_weights == 100 * 64
    assert tied.weight_bytes == 5
    assert tied.kv_bytes_per_token == 2 * 3 * 2 * 16 * 2


def test_a_window_bounds_what_is_read_of_a_context() -> None:
    windowed = dataclasses.replace(COST, windows=(100, None, 100, None))
    for context_tokens, seen in ((50, 50), (100, 100), (300, 200)):
        read = windowed.decode_bytes(batch=4, context_tokens=context_tokens)
        assert read == COST.decode_bytes(batch=4, context_tokens=seen)


def test_a_step_reads_the_experts_that_its_tokens_have() -> None:
    experts = ExpertsConfig(num_experts=8, num_active=2, intermediate_size=16, normalised=True)
    layers = (LayerConfig(is_sparse=True), LayerConfig(), LayerConfig(is_sparse=True))
    config = dataclasses.replace(_config(tied=True), architecture="Qwen3MoeForCausalLM", experts=experts, layers=layers)
    attention, norms, mlp, expert = 64 * (64 + 2 * 32) + 64 * 64, 2 * 64, 3 * 64 * 128, 3 * 64 * 16
    layer_weights = 3 * (attention + norms) + mlp + 2 * (8 * 64 + 2 * expert)
    num_weights = layer_weights + 100 * 64
    cost = decoder_cost(config, weight_bytes=2 * num_weights, kv_bytes=2)
    assert cost.layer_weights == layer_weights

    def read(batch: int) -> float:
        return cost.decode_bytes(batch=batch, context_tokens=0)

    assert read(1) == 2 * num_weights
    # Of two tokens, one expert in four of the second is one of the first's.
    assert read(2) == pytest.approx(2 * num_weights + 2 * 2 * expert * 1.5)
    assert read(1000) == pytest.approx(2 * num_weights + 2 * 2 * expert * 6)


def test_limits_are_measured_and_their_median_is_by_field() -> None:
    measured = LimitsProbe(read_bytes=2**20, matmul_size=256).measure(num_tries=2)
    assert measured.bandwidth_gb_per_second > 0
    assert measured.matmul_gflops > 0
    several = [Limits(bandwidth_gb_per_second=a, matmul_gflops=b) for a, b in ((1, 30), (2, 10), (3, 20))]
    assert median_limits(several) == Limits(bandwidth_gb_per_second=2, matmul_gflops=20)


def _config(*, tied: bool) -> ModelConfig:
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=100,
        hidden_size=64,
        intermediate_size=128,
        num_layers=3,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        rms_norm_eps=1e-5,
        rope=RopeConfig(theta=10_000.0),
        max_model_len=2048,
        tie_word_embeddings=tied,
        qkv_bias=False,
        output_bias=False,
        mlp_bias=False,
        qk_norm=False,
        eos_token_ids=frozenset({0}),
    )
