"""Every supported family says what Transformers says, token by token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from serving.engine.attention.base import AttentionChunk
from serving.engine.models.config import read_config
from serving.engine.models.loader import load_weights
from serving.engine.models.making import make_model
from serving.engine.models.model import Batch
from tests.engine.driving import Driver, driven, greedy, random_prompts, small_runner
from tests.engine.tiny_models import FAMILIES

pytestmark = pytest.mark.heavy

_PROMPTS = random_prompts([1, 7, 40, 270], vocab_size=301)
_NUM_TOKENS = 24


def _transformers_tokens(folder: Path) -> list[list[int]]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    with torch.inference_mode():
        outputs = [
            model.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=_NUM_TOKENS,
                do_sample=False,
            )
            for prompt in _PROMPTS
        ]
    return [output[0, len(prompt) :].tolist() for output, prompt in zip(outputs, _PROMPTS, strict=True)]


def _all_logits(folder: Path, prompt: list[int]) -> torch.Tensor:
    """Of every position of `prompt`, computed in two chunks, in fp32."""
    config = read_config(folder)
    options: dict[str, Any] = {"dtype": torch.float32, "device": torch.device("cpu")}
    weights = load_weights(folder, config, **options)
    model = make_model(config, weights, kv_cache_bytes=32 << 20, backend="torch", **options)
    table = list(range(len(prompt) // 16 + 1))[::-1]
    logits = []
    for begin, end in ((0, len(prompt) // 2), (len(prompt) // 2, len(prompt))):
        rows = np.arange(end - begin)
        chunk = AttentionChunk(0, end - begin, begin, table)
        first_row = begin + (config.rope.long_from or 0)
        batch = Batch(np.asarray(prompt[begin:end]), first_row + rows, [chunk], rows)
        logits.append(model.forward(model.prepare(batch)).logits.clone())
    return torch.cat(logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_equal_transformers_to_the_last_digits(family: str, tiny_model: Callable[[str], Path]) -> None:
    """Of every position of a prompt beyond all windows and original contexts."""
    folder = tiny_model(family)
    prompt = _PROMPTS[-1]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0]
    difference = (_all_logits(folder, prompt) - expected).abs().max() / expected.std()
    assert difference < 1e-4


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_equal_transformers(family: str, tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model(family)
    expected = _transformers_tokens(folder)
    assert len({tuple(tokens) for tokens in expected}) > 1, "the model says the same whatever it reads"
    driver = Driver(small_runner(folder))
    params = greedy(_NUM_TOKENS)

    alone = [driver.finish(driven([prompt], params))[0] for prompt in _PROMPTS]
    together = driver.finish(driven(_PROMPTS, params))
    chunked = driver.finish(driven(_PROMPTS, params), max_chunk=16)

    assert alone == expected
    assert together == expected
    assert chunked == expected
