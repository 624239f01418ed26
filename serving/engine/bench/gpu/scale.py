"""How much a run measures."""

from __future__ import annotations

import dataclasses
from typing import Literal

import torch

DtypeName = Literal["bfloat16", "float32"]
DTYPES: dict[DtypeName, torch.dtype] = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much is measured. Rates of prompts are guesses, of what a part will take; `num_steps` None leaves the number
    of steps to their duration."""

    models: tuple[str, ...]
    dtype: DtypeName
    check_dtypes: tuple[torch.dtype, ...]
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    prompts: tuple[int, ...]
    few_batches: tuple[int, ...]
    quantised_model: str
    speculation_tokens: int
    max_graph_rows: int
    prompt_tokens_per_second: float
    num_steps: int | None
    kv_cache_bytes: int | None
    read_bytes: int
    matmul_size: int


WHOLE = Scale(
    models=("8b", "1b"),
    dtype="bfloat16",
    check_dtypes=(torch.bfloat16, torch.float16),
    batches=(1, 8, 32, 128, 256),
    contexts=(512, 4096),
    prompts=(512, 2048, 8192),
    few_batches=(1, 8, 32),
    quantised_model="8b",
    speculation_tokens=256,
    max_graph_rows=256,
    prompt_tokens_per_second=20_000,
    num_steps=None,
    kv_cache_bytes=None,
    read_bytes=4 * 2**30,
    matmul_size=8192,
)
DRY = Scale(
    models=("tiny",),
    dtype="float32",
    check_dtypes=(torch.float16, torch.float32),
    batches=(1, 2),
    contexts=(24,),
    prompts=(20,),
    few_batches=(1,),
    quantised_model="tiny",
    speculation_tokens=3,
    max_graph_rows=2,
    prompt_tokens_per_second=20,
    num_steps=2,
    kv_cache_bytes=2**20,
    read_bytes=2**20,
    matmul_size=64,
)
"""The same on a CPU, through Triton's interpreter: to see that all works. Its figures mean nothing."""
