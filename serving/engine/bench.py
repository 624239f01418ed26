"""The engine alone, without transport: the limit that everything around it is measured against."""

from __future__ import annotations

import dataclasses
import random
import statistics
import time
from collections.abc import Iterator

from serving.contracts.ids import OwnerId, RequestId
from serving.contracts.messages import Refused, SequenceKey, Submit, Tokens
from serving.contracts.sampling import SamplingParams
from serving.engine.engine import Engine

_FIRST_TOKEN_ID, _LAST_TOKEN_ID = 1000, 40_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineLoad:
    """Random prompts, greedy, to the full output length; at most `concurrency` at once, one joining as one ends."""

    num_requests: int
    concurrency: int
    prompt_tokens: tuple[int, int]
    output_tokens: int
    seed: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigures:
    """What the engine did with a load. TTFT counts from submission; a step's time is the median, in milliseconds."""

    concurrency: int
    output_tokens: int
    wall_seconds: float
    output_tokens_per_second: float
    ttft_ms_p50: float
    step_ms_p50: float


def submits(load: EngineLoad) -> Iterator[Submit]:
    """The load's requests, the same for the same seed."""
    rng = random.Random(load.seed)
    for index in range(load.num_requests):
        length = rng.randint(*load.prompt_tokens)
        yield Submit(
            key=SequenceKey(RequestId(f"bench-{index}"), 0),
            attempt=1,
            owner_id=OwnerId("bench"),
            tenant="bench",
            prompt_ids=[rng.randint(_FIRST_TOKEN_ID, _LAST_TOKEN_ID) for _ in range(length)],
            params=SamplingParams(max_tokens=load.output_tokens, seed=0, temperature=0.0, ignore_eos=True),
        )


def measure(engine: Engine, load: EngineLoad) -> EngineFigures:
    """Run the load to its end on an idle engine. Raises RuntimeError where the engine refuses a request."""
    todo = submits(load)
    submitted_at: dict[SequenceKey, float] = {}
    first_token_at: dict[SequenceKey, float] = {}
    step_seconds: list[float] = []
    num_tokens = 0
    start = time.perf_counter()

    def fill() -> None:
        while engine.num_unfinished < load.concurrency and (submit := next(todo, None)) is not None:
            submitted_at[submit.key] = time.perf_counter()
            engine.submit(submit)

    fill()
    while engine.has_work:
        before = time.perf_counter()
        events = engine.step()
        now = time.perf_counter()
        step_seconds.append(now - before)
        for _, event in events:
            if isinstance(event, Refused):
                raise RuntimeError(f"the engine refused a request: {event.message}")
            if isinstance(event, Tokens):
                num_tokens += len(event.token_ids)
                first_token_at.setdefault(event.key, now)
        fill()
    wall_seconds = time.perf_counter() - start
    waits = [first_token_at[key] - submitted_at[key] for key in first_token_at]
    return EngineFigures(
        concurrency=load.concurrency,
        output_tokens=num_tokens,
        wall_seconds=round(wall_seconds, 3),
        output_tokens_per_second=round(num_tokens / wall_seconds, 1),
        ttft_ms_p50=round(statistics.median(waits) * 1e3, 1),
        step_ms_p50=round(statistics.median(step_seconds) * 1e3, 2),
    )
