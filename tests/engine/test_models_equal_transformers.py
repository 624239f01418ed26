"""Every supported family says what Transformers says, token by token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

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
