"""Requests of every kind: long and short, alike and apart, with every way of choosing tokens."""

from __future__ import annotations

import random
from typing import Any

import msgspec

from serving.contracts.ids import OwnerId, RequestId
from serving.contracts.messages import SequenceKey, Submit
from serving.contracts.sampling import SamplingParams
from tests.engine.driving import random_prompts

VOCABULARY = 49_000
"""Token ids below this are ordinary ones of the default model."""


def various_requests(count: int, *, max_tokens: int, seed: int = 0) -> list[list[Submit]]:
    """Requests, each as the Submits of its choices: prompts of 1 to 300 tokens, some of which begin alike. A dozen have
    some of every kind."""
    chance = random.Random(seed)
    stems = random_prompts([20, 40, 70, 130], vocab_size=VOCABULARY, seed=seed)
    requests = []
    for index in range(count):
        stem = stems[index // 2 % 4] if index % 5 < 2 else []
        shortest, longest = ((1, 25), (1, 25), (1, 1), (2, 60), (100, 300))[index % 5]
        own = random_prompts([chance.randint(shortest, longest)], vocab_size=VOCABULARY, seed=1000 * (seed + 1) + index)
        first = Submit(
            key=SequenceKey(RequestId(f"r{index}"), 0),
            attempt=1,
            owner_id=OwnerId("owner"),
            tenant="bob" if index % 4 == 3 else "ann",
            prompt_ids=stem + own[0],
            params=_various_params(index, max_tokens=(max_tokens, max_tokens, max_tokens // 3, 1)[index % 7 % 4]),
            priority=chance.choice([0, 0, -2, 5]),
            weight=chance.choice([1.0, 3.0]),
        )
        keys = [SequenceKey(first.key.request_id, choice) for choice in range(3 if index % 8 == 5 else 1)]
        requests.append([msgspec.structs.replace(first, key=key) for key in keys])
    chance.shuffle(requests)
    return requests


def _various_params(index: int, *, max_tokens: int) -> SamplingParams:
    """A temperature of 2 makes every draw depend on the last digits of the whole distribution."""
    filtered: dict[str, Any] = {"top_p": 0.9, "top_k": 50} if index % 2 else {"min_p": 0.05}
    wanted: dict[str, Any] = ({"temperature": 0.0}, {"temperature": 2.0}, filtered)[index % 3]
    if index % 4 == 1:
        wanted |= {"presence_penalty": 0.5, "frequency_penalty": 0.7, "repetition_penalty": 1.2}
    if index % 8 == 7:
        wanted |= {"logit_bias": ((100, 5.0), (200, -100.0))}
    if index % 3 == 1:
        wanted |= {"num_logprobs": index % 6}
    if index % 9 == 3:
        wanted |= {"num_prompt_logprobs": index % 4}
    if index % 4 == 2:
        wanted |= {"min_tokens": min(3, max_tokens), "stop_token_ids": tuple(range(0, 5000, 2))}
    return SamplingParams(max_tokens=max_tokens, seed=index, ignore_eos=index % 4 != 0, **wanted)
