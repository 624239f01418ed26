"""What a decoder must read and compute whatever computes it, and what the machine's limits make of that.

The roofline of Williams et al. 2009 with two roofs: memory bandwidth and the rate of matrix products.
"""

from __future__ import annotations

import dataclasses
import math

from serving.engine.bench.limits import Limits
from serving.engine.bench.loads import EngineLoad
from serving.engine.models.config import ModelConfig
from serving.engine.models.loader import expected_tensors


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DecoderCost:
    """Sizes of a decoder. `weight_bytes` is what a step reads of weights, each once; `layer_weights` and
    `output_weights` count them, by which the cost of products is reckoned."""

    weight_bytes: int
    kv_bytes_per_token: int
    layer_weights: int
    output_weights: int

    def decode_bytes(self, *, batch: int, context_tokens: float) -> float:
        """What a decode step of `batch` contexts reads."""
        return self.weight_bytes + batch * context_tokens * self.kv_bytes_per_token


def decoder_cost(config: ModelConfig, *, weight_bytes: int, kv_bytes: int) -> DecoderCost:
    """The cost of the model of `config`, whose weights take `weight_bytes` and whose cached numbers `kv_bytes` each."""
    sizes = {name: math.prod(shape) for name, shape in expected_tensors(config).items()}
    layer_weights = sum(size for name, size in sizes.items() if name.startswith("model.layers."))
    return DecoderCost(
        weight_bytes=weight_bytes,
        kv_bytes_per_token=2 * config.num_layers * config.num_kv_heads * config.head_dim * kv_bytes,
        layer_weights=layer_weights,
        output_weights=config.vocab_size * config.hidden_size,
    )


def floor_ms(cost: DecoderCost, limits: Limits, *, batch: int, context_tokens: float) -> float:
    """The least milliseconds a decode step takes: what it reads over the memory bandwidth."""
    num_bytes = cost.decode_bytes(batch=batch, context_tokens=context_tokens)
    return round(num_bytes / limits.bandwidth_gb_per_second / 1e6, 3)


def limit_tokens_per_second(cost: DecoderCost, limits: Limits, load: EngineLoad) -> float:
    """Output tokens a second that the nearer roof allows for `load`, its batch being always full.

    A token's share of a decode step's reading, or its products and its share of the prompt's: two operations a weight.
    """
    prompt = load.mean_prompt_tokens
    context_tokens = prompt + load.output_tokens / 2
    read_bytes = cost.decode_bytes(batch=load.max_running, context_tokens=context_tokens) / load.max_running
    operations = 2 * (cost.layer_weights * (1 + prompt / load.output_tokens) + cost.output_weights)
    reading = read_bytes / (limits.bandwidth_gb_per_second * 1e9)
    computing = operations / (limits.matmul_gflops * 1e9)
    return round(1 / max(reading, computing), 1)
