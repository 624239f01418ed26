"""What a decoder must read and compute whatever computes it, and what the machine's limits make of that.

The roofline of Williams et al. 2009 with two roofs: memory bandwidth and the rate of matrix products.
"""

from __future__ import annotations

import dataclasses

from serving.engine.bench.limits import Limits
from serving.engine.bench.loads import EngineLoad
from serving.engine.models.config import ModelConfig
from serving.engine.models.layout import count_layer_weights


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DecoderCost:
    """Sizes of a decoder. `weight_bytes` is what a step of one token reads of weights, each once; `layer_weights` and
    `output_weights` count them, by which the cost of products is reckoned.

    `windows` are the layers' sliding windows, empty where none has one. Of mixtures of `num_experts` experts a token
    has `num_active`, and one of them takes `expert_bytes` in all layers together.
    """

    weight_bytes: int
    kv_bytes_per_token: int
    layer_weights: int
    output_weights: int
    windows: tuple[int | None, ...] = ()
    num_experts: int = 0
    num_active: int = 0
    expert_bytes: float = 0.0

    def decode_bytes(self, *, batch: int, context_tokens: float) -> float:
        """What a decode step of `batch` contexts reads. Tokens are taken to choose experts by chance, all alike."""
        return (
            self.weight_bytes
            + self._more_experts(batch) * self.expert_bytes
            + batch * self._seen_tokens(context_tokens) * self.kv_bytes_per_token
        )

    def _more_experts(self, batch: int) -> float:
        """How many experts a layer's tokens have beyond those of one, on average."""
        if not self.num_experts:
            return 0.0
        unread = (1 - self.num_active / self.num_experts) ** batch
        return self.num_experts * (1 - unread) - self.num_active

    def _seen_tokens(self, context_tokens: float) -> float:
        """How many tokens of a context the layers see, on average."""
        if not self.windows:
            return context_tokens
        seen = [context_tokens if window is None else min(context_tokens, window) for window in self.windows]
        return sum(seen) / len(seen)


def decoder_cost(config: ModelConfig, *, weight_bytes: int, kv_bytes: int) -> DecoderCost:
    """The cost of the model of `config`, whose weights take `weight_bytes` and whose cached numbers `kv_bytes` each."""
    layer_weights = count_layer_weights(config)
    output_weights = config.vocab_size * config.hidden_size
    windows = tuple(config.layer(index).window for index in range(config.num_layers))
    cost = DecoderCost(
        weight_bytes=weight_bytes,
        kv_bytes_per_token=2 * config.num_layers * config.num_kv_heads * config.head_dim * kv_bytes,
        layer_weights=layer_weights,
        output_weights=output_weights,
        windows=windows if any(windows) else (),
    )
    if config.experts is None:
        return cost
    num_sparse = sum(config.layer(index).is_sparse for index in range(config.num_layers))
    expert_weights = num_sparse * 3 * config.hidden_size * config.experts.intermediate_size
    return dataclasses.replace(
        cost,
        num_experts=config.experts.num_experts,
        num_active=config.experts.num_active,
        expert_bytes=expert_weights * weight_bytes / (layer_weights + output_weights),
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
