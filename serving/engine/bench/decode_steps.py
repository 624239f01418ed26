"""Where a decode step's time goes."""

from __future__ import annotations

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence

from serving.contracts.ids import EngineId, OwnerId
from serving.contracts.messages import Event, Reply, encode
from serving.engine.bench.loads import EngineLoad, submits, tunables_for
from serving.engine.engine import Engine
from serving.engine.plan import Runner, StepPlan, StepResult, StepTimes

PHASES = ("schedule", "prepare", "linear", "attention", "sampling", "update", "publish", "other")
"""Linear is the forward pass without attention; publish is encoding what the owners are told, which serving does on
another thread; other is what nobody times: checks and records. Together they are the step."""

_NUM_WARM_UP_STEPS = 3


@dataclasses.dataclass(frozen=True, slots=True)
class DecodeStep:
    """One step's duration and its phases, in seconds; the phases sum to the duration. `num_decoding` sequences decoded
    and nothing else was computed; 0 where something was."""

    num_decoding: int
    total_seconds: float
    phases: dict[str, float]


class WatchedRunner:
    """A runner that keeps the times of its last step, and otherwise is the one it stands for. Owns nothing else; on
    the thread that steps the engine."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self.num_blocks = runner.num_blocks
        self.block_size = runner.block_size
        self.max_model_len = runner.max_model_len
        self.eos_token_ids = runner.eos_token_ids
        self.last_times = StepTimes()

    def run(self, plan: StepPlan) -> StepResult:
        """Compute `plan`."""
        result = self._runner.run(plan)
        self.last_times = result.times
        return result


def measure_decode_steps(
    runner: Runner,
    *,
    batch: int,
    context_tokens: int,
    num_steps: int,
    seed: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[DecodeStep]:
    """Time `num_steps` steps in which `batch` sequences decode, whose contexts have `context_tokens` on average.

    Raises RuntimeError where a step was not such a step: the KV cache cannot hold the batch.
    """
    watched = WatchedRunner(runner)
    tunables = tunables_for(batch, {"max_batch_tokens": 2048, "max_prefill_chunk": 512, "prefill_share": 1})
    engine = Engine(watched, tunables=tunables, clock=clock)
    prompt_tokens = max(1, context_tokens - _NUM_WARM_UP_STEPS - num_steps // 2)
    _start_decoding(engine, batch=batch, prompt_tokens=prompt_tokens, seed=seed)
    steps = [_timed_step(engine, watched, clock) for _ in range(_NUM_WARM_UP_STEPS + num_steps)]
    if any(step is None or step.num_decoding != batch for step in steps):
        raise RuntimeError(f"a batch of {batch} contexts of {context_tokens} tokens does not fit the KV cache")
    return [step for step in steps[_NUM_WARM_UP_STEPS:] if step is not None]


def breakdown_ms(steps: Sequence[DecodeStep]) -> dict[str, float]:
    """The phases of a typical step in milliseconds, and `step`, their sum: the mean over the third of `steps` whose
    durations are nearest the median. (Medians of the phases would not sum to a step's.)"""
    median = statistics.median(step.total_seconds for step in steps)
    nearest = sorted(steps, key=lambda step: abs(step.total_seconds - median))[: max(1, len(steps) // 3)]
    means = {name: statistics.fmean(step.phases[name] for step in nearest) * 1e3 for name in PHASES}
    rounded = {name: round(value, 4) for name, value in means.items()}
    return rounded | {"step": round(sum(rounded.values()), 4)}


def _start_decoding(engine: Engine, *, batch: int, prompt_tokens: int, seed: int) -> None:
    """Compute the prompts; afterwards every sequence of the batch decodes, on to the longest context."""
    load = EngineLoad(
        num_requests=batch,
        max_running=batch,
        prompt_tokens=(prompt_tokens, prompt_tokens),
        output_tokens=max(1, engine.counts().max_model_len - prompt_tokens),
    )
    for request in submits(load, seed=seed):
        engine.submit(request)
    while True:
        last_step = engine.counts().steps_total
        engine.step()
        records = engine.records_since(last_step)
        if not records or records[-1].num_prefill_tokens == 0:
            return  # Whether all decode now, or they do not fit, the caller sees.


def _timed_step(engine: Engine, watched: WatchedRunner, clock: Callable[[], float]) -> DecodeStep | None:
    """One step and where its time went; None where nothing could run."""
    last_step = engine.counts().steps_total
    began = clock()
    events = engine.step()
    stepped = clock()
    _encode(events)
    ended = clock()
    records = engine.records_since(last_step)
    if not records:
        return None
    record, times = records[-1], watched.last_times
    phases = {
        "schedule": record.schedule_seconds,
        "prepare": times.prepare_seconds,
        # Where a backend cannot tell its products from norms and rotations, they are counted with these.
        "linear": times.linear_seconds or times.forward_seconds - times.attention_seconds,
        "attention": times.attention_seconds,
        "sampling": times.sample_seconds,
        "update": record.update_seconds,
        "publish": ended - stepped,
    }
    num_decoding = 0 if record.num_prefill_tokens else record.num_decode_tokens
    total_seconds = ended - began
    return DecodeStep(num_decoding, total_seconds, phases | {"other": total_seconds - sum(phases.values())})


def _encode(events: Sequence[tuple[OwnerId, Event]]) -> bytes:
    return encode(Reply(EngineId("bench"), [event for _, event in events]))
