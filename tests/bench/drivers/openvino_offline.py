"""OpenVINO GenAI's continuous batching: openvino_offline.py MODEL.gguf MAX_RUNNING NUM_THREADS."""

from __future__ import annotations

import sys
from typing import Any

from protocol import Generate, serve


def load() -> Generate:
    import numpy as np
    import openvino
    import openvino_genai as genai

    scheduler = genai.SchedulerConfig()
    scheduler.max_num_seqs = int(sys.argv[2])
    scheduler.max_num_batched_tokens = 512
    scheduler.enable_prefix_caching = False
    scheduler.cache_size = 2  # GiB
    pipeline = genai.ContinuousBatchingPipeline(
        sys.argv[1], scheduler, "CPU", {"INFERENCE_NUM_THREADS": int(sys.argv[3])}
    )

    def generate(prompts: list[list[int]], output_tokens: int) -> dict[str, Any]:
        config = genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = output_tokens
        config.ignore_eos, config.do_sample = True, False
        tensors = [openvino.Tensor(np.array([prompt], dtype=np.int64)) for prompt in prompts]
        results = pipeline.generate(tensors, [config] * len(tensors))
        return {
            "output_tokens": sum(len(result.m_generation_ids[0]) for result in results),
            "ttft_ms": {"p50": float(np.median([result.perf_metrics.get_ttft().mean for result in results]))},
        }

    return generate


if __name__ == "__main__":
    serve(load)
