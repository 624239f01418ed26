"""What a step costs, as a sum of terms that are each linear in what the step computes."""

from __future__ import annotations

from typing import Literal

import msgspec


class StepWork(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one step computes. `num_prefill_positions` sums over the prefill tokens how many positions each attends to;
    `num_context_tokens` sums over the decoding sequences how long their contexts are. `num_padded_tokens` are those
    that a rectangular batch would compute for nothing (`static` mode)."""

    num_prefill_tokens: int = 0
    num_prefill_positions: int = 0
    num_decoding: int = 0
    num_context_tokens: int = 0
    num_padded_tokens: int = 0


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """How well a model describes the steps that it was fitted to, on those held back from fitting: relative errors of
    a step's duration, and of the sum of all durations. `assumed` names the terms of which these steps tell little:
    they stay near the default model's, times how much slower this engine is. `num_kinds` is of how many kinds the steps
    were (`serving.lab.costs.stock`; 0: not counted), `num_ways` of how many requests the way to the engine was seen (0:
    it is the default model's)."""

    num_steps: int
    num_held_back: int
    median_error: float
    p95_error: float
    total_error: float
    assumed: tuple[str, ...] = ()
    num_kinds: int = 0
    num_ways: int = 0


class CostModel(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of a step: `step_seconds`, and what each token, position and sequence adds. `request_seconds` is what a
    request takes from its arrival at the server until its engine could begin with it (`serving.lab.costs.ways`). A
    padded token costs `padding_share` of what a prefill token does: nothing in an engine that computes no padding."""

    step_seconds: float
    prefill_token_seconds: float
    prefill_position_seconds: float
    decoding_seconds: float
    context_token_seconds: float
    request_seconds: float = 0.0
    padding_share: float = 0.0
    source: Literal["default", "fitted"] = "default"
    fit: Fit | None = None

    def seconds(self, work: StepWork) -> float:
        """How long a step of that work takes."""
        return self.steady_seconds(work, 1)

    def steady_seconds(self, work: StepWork, count: int) -> float:
        """How long `count` steps take, of which the first is of that work, and in each of the others everyone that
        decodes has one token of context more."""
        prefill_tokens = work.num_prefill_tokens + self.padding_share * work.num_padded_tokens
        first = (
            self.step_seconds
            + self.prefill_token_seconds * prefill_tokens
            + self.prefill_position_seconds * work.num_prefill_positions
            + self.decoding_seconds * work.num_decoding
            + self.context_token_seconds * work.num_context_tokens
        )
        return count * first + self.growth_seconds(work) * count * (count - 1) / 2

    def growth_seconds(self, work: StepWork) -> float:
        """By how much a steady step takes longer than the one before."""
        return self.context_token_seconds * work.num_decoding
