"""The engine on a model of made-up weights: decode steps, and prompts alone."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from serving.contracts.ids import OwnerId
from serving.contracts.messages import Event, Finished, Refused, SequenceKey, Tokens
from serving.contracts.tunables import describe
from serving.engine.bench.decode_steps import WatchedRunner
from serving.engine.bench.floors import DecoderCost
from serving.engine.bench.limits import Limits
from serving.engine.bench.loads import EngineLoad, submits, tunables_for
from serving.engine.engine import Engine
from serving.engine.model_runner import ModelRunner
from serving.engine.models.config import ModelConfig
from serving.engine.plan import Runner
from serving.engine.warming import set_aside

_WARM_UP_STEPS = 4
_MOST_STEPS = 64
_MEASURED_SECONDS = 0.6
_MOST_EARLY_TOKENS = 160
"""Those who are ready first may decode until the last is."""


class EngineFailed(Exception):
    """A request was refused, or ended by an error: what was measured was not the work."""


class DoesNotFit(Exception):
    """The KV cache cannot hold what was to be measured."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DecodeFigures:
    """Decode steps of `batch` sequences whose contexts have `context_tokens` on average. `limit_ratio` is the share of
    the memory's bandwidth: the least time to read weights and KV once, over the time taken."""

    batch: int
    context_tokens: int
    num_steps: int
    step_ms: float
    tokens_per_second: float
    limit_ratio: float
    prompt_tokens_per_second: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PrefillFigures:
    """One prompt of `prompt_tokens` alone, from submission to its first token. `limit_ratio` is the share of the rate
    of matrix products that its arithmetic came to."""

    prompt_tokens: int
    first_token_ms: float
    tokens_per_second: float
    limit_ratio: float


def measure_decoding(
    runner: ModelRunner,
    cost: DecoderCost,
    limits: Limits,
    *,
    batch: int,
    context_tokens: int,
    looks_ahead: bool = True,
    num_steps: int | None = None,
    during: Callable[[Callable[[], object]], object] = lambda make_steps: make_steps(),
) -> DecodeFigures:
    """Time steps in which `batch` sequences decode and nothing else is computed: `num_steps`, or as many as take a
    fraction of a second. `during` is handed what makes the steps, and may watch them. Raises `DoesNotFit`.
    """
    most_steps = num_steps or _MOST_STEPS
    prompt_tokens = max(1, context_tokens - _WARM_UP_STEPS - most_steps // 2)
    longest = min(runner.max_model_len, prompt_tokens + most_steps + _MOST_EARLY_TOKENS)
    needed = batch * -(-longest // runner.block_size)
    if needed > runner.num_blocks:
        raise DoesNotFit(f"{needed} blocks of KV cache are needed, and there are {runner.num_blocks}")
    engine = Engine(_seen(runner, looks_ahead=looks_ahead), tunables=tunables_for(batch, _LARGE_STEPS))
    load = EngineLoad(
        num_requests=batch,
        max_running=batch,
        prompt_tokens=(prompt_tokens, prompt_tokens),
        output_tokens=longest - prompt_tokens,
    )
    keys = _submit(engine, load, runner.config)
    began = time.perf_counter()
    _step_until_all_decode(engine, batch)
    prompt_seconds = time.perf_counter() - began
    warm = [_timed(lambda: _step(engine)) for _ in range(_WARM_UP_STEPS)]
    steps = num_steps or max(8, min(_MOST_STEPS, int(_MEASURED_SECONDS / statistics.median(warm))))
    seconds = 0.0
    events: list[tuple[OwnerId, Event]] = []

    def make_steps() -> None:
        nonlocal seconds
        began = time.perf_counter()
        for _ in range(steps):
            events.extend(engine.step())
        seconds = time.perf_counter() - began

    with _objects_set_aside():
        during(make_steps)
    _check(events)
    num_tokens = sum(len(event.token_ids) for _, event in events if isinstance(event, Tokens))
    if num_tokens != batch * steps:
        raise DoesNotFit(f"{num_tokens} tokens came of {steps} steps of {batch} sequences: not all decoded in each")
    _end(engine, keys)
    step_seconds = seconds / steps
    least_seconds = cost.decode_bytes(batch=batch, context_tokens=context_tokens) / limits.bandwidth_gb_per_second / 1e9
    return DecodeFigures(
        batch=batch,
        context_tokens=context_tokens,
        num_steps=steps,
        step_ms=round(step_seconds * 1e3, 4),
        tokens_per_second=round(batch / step_seconds, 1),
        limit_ratio=round(least_seconds / step_seconds, 3),
        prompt_tokens_per_second=round(batch * prompt_tokens / prompt_seconds, 1),
    )


def measure_prefill(
    runner: ModelRunner, cost: DecoderCost, limits: Limits, *, prompt_tokens: int, num_tries: int = 3
) -> PrefillFigures:
    """Time a prompt alone, the best of a few, each of other tokens."""
    seconds = []
    for seed in range(1 + num_tries):  # the first prepares
        engine = Engine(runner, tunables=tunables_for(1, _LARGE_STEPS))
        load = EngineLoad(num_requests=1, max_running=1, prompt_tokens=(prompt_tokens, prompt_tokens), output_tokens=1)
        began = time.perf_counter()
        _submit(engine, load, runner.config, seed=seed)
        while engine.has_work:
            _step(engine)
        seconds.append(time.perf_counter() - began)
    best = min(seconds[1:])
    config = runner.config
    operations = 2 * cost.layer_weights * prompt_tokens + 2 * cost.output_weights
    # Scores and weighted values, for half of all pairs of positions.
    operations += 2 * config.num_layers * config.num_heads * config.head_dim * prompt_tokens**2
    return PrefillFigures(
        prompt_tokens=prompt_tokens,
        first_token_ms=round(best * 1e3, 3),
        tokens_per_second=round(prompt_tokens / best, 1),
        limit_ratio=round(operations / best / (limits.matmul_gflops * 1e9), 3),
    )


def measure_speculation(
    runner: ModelRunner, *, batch: int, context_tokens: int, output_tokens: int
) -> dict[str, float | int]:
    """Output tokens a second with and without drafts, and how many drafted tokens were kept. What models of made-up
    weights say repeats itself more than text does: the figure tells what a kept token is worth, not how many are."""
    rates = {}
    drafted = accepted = 0
    for speculation in ("off", "on"):
        engine = Engine(runner, tunables=tunables_for(batch, _LARGE_STEPS | {"speculation": speculation}))
        load = EngineLoad(
            num_requests=batch,
            max_running=batch,
            prompt_tokens=(context_tokens, context_tokens),
            output_tokens=output_tokens,
        )
        _submit(engine, load, runner.config)
        _step_until_all_decode(engine, batch)
        began = time.perf_counter()
        while engine.has_work:
            _step(engine)
        rates[speculation] = batch * output_tokens / (time.perf_counter() - began)
        told = engine.counts()
        drafted, accepted = told.drafted_tokens_total, told.accepted_tokens_total
    return {
        "batch": batch,
        "drafted_tokens": drafted,
        "accepted_tokens": accepted,
        "tokens_per_second_off": round(rates["off"], 1),
        "tokens_per_second_on": round(rates["on"], 1),
        "ratio": round(rates["on"] / rates["off"], 3),
    }


@contextlib.contextmanager
def _objects_set_aside() -> Iterator[None]:
    """As where engines serve; afterwards what belongs to one model can be let go."""
    set_aside()
    try:
        yield
    finally:
        gc.unfreeze()


def _largest(name: str) -> Any:
    return next(spec.high for spec in describe() if spec.name == name)


_LARGE_STEPS: dict[str, Any] = {
    "max_batch_tokens": 8192,
    "max_prefill_chunk": 8192,
    "prefill_share": 1,
    "max_queue_requests": _largest("max_queue_requests"),
    "max_queue_tokens": _largest("max_queue_tokens"),
    "max_long_prefills": _largest("max_long_prefills"),
    "kv_watermark_ratio": 0,
    "prefix_caching": "off",
}
"""Prompts as fast as they can be computed, all at once."""


def _seen(runner: ModelRunner, *, looks_ahead: bool) -> Runner:
    """`runner`, or one in its place that can only be given a plan when the plan before has come back."""
    return runner if looks_ahead else WatchedRunner(runner)


def _submit(engine: Engine, load: EngineLoad, config: ModelConfig, *, seed: int = 0) -> list[SequenceKey]:
    requests = submits(load, seed=seed, token_ids=(2, config.vocab_size - 1))
    for request in requests:
        engine.submit(request)
    return [request.key for request in requests]


def _step_until_all_decode(engine: Engine, batch: int) -> None:
    while True:
        before = engine.counts().steps_total
        _step(engine)
        records = engine.records_since(before)
        if any(record.num_decode_tokens == batch and not record.num_prefill_tokens for record in records):
            return
        if not engine.has_work:
            raise DoesNotFit("sequences ended before all decoded at once")


def _end(engine: Engine, keys: list[SequenceKey]) -> None:
    for key in keys:
        engine.abort(key, attempt=1)
    while engine.has_work:
        engine.step()


def _step(engine: Engine) -> None:
    _check(engine.step())


def _check(events: Iterable[tuple[OwnerId, Event]]) -> None:
    for _, event in events:
        if isinstance(event, Refused):
            raise EngineFailed(f"the engine refused a request: {event.message}")
        if isinstance(event, Finished) and event.reason not in {"length", "abort"}:
            raise EngineFailed(f"a request ended by {event.reason}: {event.message}")


def _timed(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
