"""Loads for the engine alone, and what it does with them."""

from __future__ import annotations

import dataclasses
import itertools
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from serving.contracts.ids import OwnerId, RequestId
from serving.contracts.messages import Refused, SequenceKey, Submit, Tokens
from serving.contracts.sampling import SamplingParams
from serving.contracts.tunables import Tunables, describe
from serving.engine.engine import Engine

OWNER = OwnerId("bench")
_FIRST_TOKEN_ID, _LAST_TOKEN_ID = 1000, 40_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """Requests with random prompts of `prompt_tokens` (least, most), greedy, to the full output length. All are there
    from the start, at most `max_running` in the batch."""

    num_requests: int
    max_running: int
    prompt_tokens: tuple[int, int]
    output_tokens: int

    def tunables(self, changes: Mapping[str, Any] | None = None) -> Tunables:
        """`tunables_for` this load's batch."""
        return tunables_for(self.max_running, changes or {})

    @property
    def mean_prompt_tokens(self) -> float:
        """Expected length of a prompt."""
        return sum(self.prompt_tokens) / 2


LOADS: Mapping[str, EngineLoad] = {
    "w1": EngineLoad(num_requests=64, max_running=32, prompt_tokens=(32, 256), output_tokens=128),
    "w2": EngineLoad(num_requests=1, max_running=1, prompt_tokens=(64, 64), output_tokens=128),
}
"""W1: many requests at once, offline. W2: one request alone."""

QUICK_LOADS: Mapping[str, EngineLoad] = {
    "w1": dataclasses.replace(LOADS["w1"], num_requests=8, max_running=4, output_tokens=16),
    "w2": dataclasses.replace(LOADS["w2"], output_tokens=16),
}
"""The same in seconds, to see that all works; the figures mean little."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoadFigures:
    """What the engine did with a load. TTFT counts from submission, ITL is the gap between two tokens of a sequence."""

    output_tokens: int
    wall_seconds: float
    output_tokens_per_second: float
    ttft_ms: dict[str, float]
    itl_ms: dict[str, float]
    step_ms: dict[str, float]


def tunables_for(max_running: int, changes: Mapping[str, Any]) -> Tunables:
    """The defaults with `changes`, for a batch of `max_running`; however slow the engine is, nobody waits too long."""
    longest_ms = next(spec.high for spec in describe() if spec.name == "max_queue_wait_ms")
    return Tunables().changed({"max_queue_wait_ms": longest_ms, **changes, "max_running": max_running})


def submits(
    load: EngineLoad, *, seed: int, token_ids: tuple[int, int] = (_FIRST_TOKEN_ID, _LAST_TOKEN_ID)
) -> list[Submit]:
    """The load's requests, the same for the same seed; prompts are of tokens from the first of `token_ids` to the
    last."""
    rng = random.Random(seed)
    lengths = [rng.randint(*load.prompt_tokens) for _ in range(load.num_requests)]
    prompts = [[rng.randint(*token_ids) for _ in range(length)] for length in lengths]
    return greedy_submits(prompts, output_tokens=load.output_tokens)


def greedy_submits(prompts: Iterable[list[int]], *, output_tokens: int) -> list[Submit]:
    """A request a prompt, greedy, which goes on past the model's end of text to `output_tokens`."""
    params = SamplingParams(max_tokens=output_tokens, seed=0, temperature=0.0, ignore_eos=True)
    return [
        Submit(
            key=SequenceKey(RequestId(f"bench-{index}"), 0),
            attempt=1,
            owner_id=OWNER,
            tenant="bench",
            prompt_ids=prompt,
            params=params,
        )
        for index, prompt in enumerate(prompts)
    ]


def play(engine: Engine, requests: Sequence[Submit], *, clock: Callable[[], float] = time.perf_counter) -> LoadFigures:
    """Submit all to an idle engine and run it to their end. Raises RuntimeError where it refuses one."""
    arrivals: dict[SequenceKey, list[float]] = {}
    step_seconds: list[float] = []
    num_tokens = 0
    start = clock()
    for request in requests:
        engine.submit(request)
    while engine.has_work:
        before = clock()
        events = engine.step()
        now = clock()
        step_seconds.append(now - before)
        for _, event in events:
            if isinstance(event, Refused):
                raise RuntimeError(f"the engine refused a request: {event.message}")
            if isinstance(event, Tokens):
                num_tokens += len(event.token_ids)
                arrivals.setdefault(event.key, []).append(now)
    wall_seconds = clock() - start
    gaps = [later - earlier for times in arrivals.values() for earlier, later in itertools.pairwise(times)]
    return LoadFigures(
        output_tokens=num_tokens,
        wall_seconds=round(wall_seconds, 3),
        output_tokens_per_second=round(num_tokens / wall_seconds, 2),
        ttft_ms=percentiles_ms([times[0] - start for times in arrivals.values()]),
        itl_ms=percentiles_ms(gaps),
        step_ms=percentiles_ms(step_seconds),
    )


def percentiles_ms(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p95, p99 and the largest of `seconds`, in milliseconds; empty for none."""
    if not seconds:
        return {}
    p50, p95, p99 = np.percentile(seconds, (50, 95, 99))
    named = {"p50": p50, "p95": p95, "p99": p99, "max": max(seconds)}
    return {name: round(float(value) * 1e3, 3) for name, value in named.items()}
