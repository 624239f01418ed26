"""Transformers' generate on static batches, padded on the left: transformers_offline.py MODEL_FOLDER BATCH."""

from __future__ import annotations

import sys
from typing import Any

from protocol import Generate, serve

_PADDING = 0


def load() -> Generate:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16, local_files_only=True).eval()
    size = int(sys.argv[2])

    @torch.inference_mode()
    def generate(prompts: list[list[int]], output_tokens: int) -> dict[str, Any]:
        num_tokens = 0
        for first in range(0, len(prompts), size):
            batch = prompts[first : first + size]
            longest = max(map(len, batch))
            token_ids = torch.tensor([[_PADDING] * (longest - len(prompt)) + prompt for prompt in batch])
            mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in batch])
            found = model.generate(
                input_ids=token_ids,
                attention_mask=mask,
                max_new_tokens=output_tokens,
                min_new_tokens=output_tokens,
                do_sample=False,
                pad_token_id=_PADDING,
            )
            num_tokens += found[:, longest:].numel()
        return {"output_tokens": num_tokens}

    return generate


if __name__ == "__main__":
    serve(load)
