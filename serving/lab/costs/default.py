"""What steps cost where nothing was measured yet."""

from __future__ import annotations

from typing import Final

from serving.lab.costs.envelope import Envelope
from serving.lab.costs.model import CostModel

DEFAULT_COST: Final = CostModel(
    step_seconds=0.0085,
    prefill_token_seconds=0.00045,
    prefill_position_seconds=2.5e-8,
    decoding_seconds=0.0009,
    context_token_seconds=3.0e-7,
    request_seconds=0.008,
)
"""Of SmolLM2-135M-Instruct in bf16 on two processor cores with AVX-512, rounded: one's own engine is fitted as soon as
it has computed enough."""

DEFAULT_ENVELOPE: Final = Envelope(num_blocks=2912, block_size=16, max_model_len=8192)
"""Of the same engine with 1024 MiB for keys and values."""
