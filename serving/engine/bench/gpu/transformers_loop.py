"""The same model in a plain Transformers generate loop: what the engine is worth."""

from __future__ import annotations

import time
from typing import Any

import torch

from serving.engine.bench.gpu.shapes import SHAPES
from serving.engine.bench.gpu.timing import synchronize

_NOT_FOR_TRANSFORMERS = {"architectures", "model_type", "rope_theta"}


class GenerateLoop:
    """Owns a Transformers model of one shape, with random weights, on a device; on the thread that measures."""

    def __init__(self, shape: str, *, device: torch.device, dtype: torch.dtype) -> None:
        """Raises `ImportError` where Transformers is not installed."""
        from transformers import AutoModelForCausalLM, LlamaConfig

        fields = {name: value for name, value in SHAPES[shape].items() if name not in _NOT_FOR_TRANSFORMERS}
        with device:
            make: Any = AutoModelForCausalLM.from_config
            self._model: Any = make(LlamaConfig(**fields), dtype=dtype).eval()
        self._device = device
        self._vocab_size = SHAPES[shape]["vocab_size"]

    def tokens_per_second(self, *, batch: int, context_tokens: int, num_tokens: int = 24) -> float:
        """Decoded tokens a second, greedily: what `num_tokens` more tokens take beyond the first, prompts left out."""
        prompts = torch.randint(2, self._vocab_size, (batch, context_tokens), device=self._device)
        self._generate(prompts, 2)
        first = self._generate(prompts, 1)
        all_of_them = self._generate(prompts, 1 + num_tokens)
        return batch * num_tokens / max(all_of_them - first, 1e-9)

    @torch.inference_mode()
    def _generate(self, prompts: torch.Tensor, num_tokens: int) -> float:
        synchronize(self._device)
        began = time.perf_counter()
        self._model.generate(
            prompts,
            attention_mask=torch.ones_like(prompts),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
            pad_token_id=0,
        )
        synchronize(self._device)
        return time.perf_counter() - began
