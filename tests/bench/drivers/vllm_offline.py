"""vLLM's engine: vllm_offline.py MODEL_FOLDER MAX_RUNNING."""

from __future__ import annotations

import sys
from typing import Any

from protocol import Generate, serve


def load() -> Generate:
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=sys.argv[1],
        dtype="bfloat16",
        max_num_seqs=int(sys.argv[2]),
        max_model_len=4096,
        enable_prefix_caching=False,
    )

    def generate(prompts: list[list[int]], output_tokens: int) -> dict[str, Any]:
        # The engine alone, as the others are measured: without turning tokens into text.
        params = SamplingParams(max_tokens=output_tokens, temperature=0.0, ignore_eos=True, detokenize=False)
        asked = [{"prompt_token_ids": prompt} for prompt in prompts]
        results = llm.generate(asked, params, use_tqdm=False)
        return {"output_tokens": sum(len(result.outputs[0].token_ids) for result in results)}

    return generate


if __name__ == "__main__":
    serve(load)
