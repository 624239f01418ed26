"""Workloads W2 to W5 over HTTP, as clients see them. Prompts are random and never the same twice in a run."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from tests.bench.clients import Outcome, Target, Workload, ask, client_session, percentiles_ms, play, prompts

Figures = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MixedLoad:
    """W5: `num_streams` decode without end; after a quiet while a long prompt arrives every `gap_seconds`."""

    num_streams: int = 8
    stream_prompt_tokens: int = 64
    stream_output_tokens: int = 400
    long_prompt_tokens: int = 1900
    long_output_tokens: int = 8
    num_long: int = 10
    gap_seconds: float = 2.0
    settle_seconds: float = 4.0
    quiet_seconds: float = 6.0


_W2 = Workload(num_requests=1, concurrency=1, rate=None, prompt_tokens=(64, 64), output_tokens=128, seed=0)
_W3 = Workload(num_requests=64, concurrency=32, rate=None, prompt_tokens=(32, 256), output_tokens=128, seed=0)
_W4 = dataclasses.replace(_W3, rate=2.0)


async def play_mixed(load: MixedLoad, target: Target, *, seed: int) -> Figures:
    """Play W5: what the long prompts do to the gaps between the streams' tokens, and how long they wait themselves."""
    rng = random.Random(seed)
    streams: list[Outcome] = []
    async with client_session() as session:

        async def decode() -> None:
            while True:
                outcome = Outcome(time.monotonic(), load.stream_prompt_tokens)
                streams.append(outcome)
                prompt = _random_prompt(rng, load.stream_prompt_tokens)
                await ask(target, session, prompt, load.stream_output_tokens, into=outcome)
                if outcome.error:
                    return

        async def ask_long(due: float) -> Outcome:
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            outcome = Outcome(due, load.long_prompt_tokens)
            prompt = _random_prompt(rng, load.long_prompt_tokens)
            await ask(target, session, prompt, load.long_output_tokens, into=outcome)
            return outcome

        decoding = [asyncio.create_task(decode()) for _ in range(load.num_streams)]
        await asyncio.sleep(load.settle_seconds)
        quiet = time.monotonic()
        mixed = quiet + load.quiet_seconds
        end = mixed + load.num_long * load.gap_seconds
        longs = [asyncio.create_task(ask_long(mixed + index * load.gap_seconds)) for index in range(load.num_long)]
        await asyncio.sleep(end - time.monotonic())
        for task in decoding:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*decoding)
        long_outcomes = await asyncio.gather(*longs)
    return summarise_mixed(streams, long_outcomes, quiet=quiet, mixed=mixed, end=end)


def summarise_mixed(
    streams: Sequence[Outcome], longs: Sequence[Outcome], *, quiet: float, mixed: float, end: float
) -> Figures:
    """Figures of W5, whose quiet part lasts from `quiet` to `mixed` and whose mixed part to `end`."""
    before, during = _gaps_within(streams, quiet, mixed), _gaps_within(streams, mixed, end)
    answered = [outcome for outcome in longs if outcome.error is None and outcome.arrivals]
    return {
        "num_failed": len(longs) - len(answered) + sum(outcome.error is not None for outcome in streams),
        "first_error": next((outcome.error for outcome in [*streams, *longs] if outcome.error), None),
        "num_output_tokens": sum(len(outcome.arrivals) for outcome in [*streams, *longs]),
        "quiet_itl_ms": percentiles_ms(before),
        "itl_ms": percentiles_ms(during),
        "quiet_tokens_per_second": round(len(before) / (mixed - quiet), 1),
        "output_tokens_per_second": round(len(during) / (end - mixed), 1),
        "long_ttft_ms": percentiles_ms([outcome.arrivals[0] - outcome.due for outcome in answered]),
    }


async def warm_up(target: Target) -> None:
    """Let a server make what it makes at its first requests: many at once, and one alone. Raises RuntimeError."""
    many = dataclasses.replace(_W3, num_requests=32, prompt_tokens=(32, 64), output_tokens=16, seed=6)
    for load in (many, dataclasses.replace(_W2, output_tokens=16, seed=7)):
        figures = await play(load, target, progress=lambda _: None)
        if figures["num_failed"]:
            raise RuntimeError(f"{figures['num_failed']} requests failed; the first: {figures['first_error']}")


Player = Callable[[Target, int], Awaitable[Figures]]


def players(*, quick: bool) -> Mapping[str, Player]:
    """By workload, how it is played against a server with a seed; `quick` plays a few seconds of each."""
    w2, w3, w4, w5 = _W2, _W3, _W4, MixedLoad()
    if quick:
        w2 = dataclasses.replace(w2, output_tokens=16)
        w3 = dataclasses.replace(w3, num_requests=8, concurrency=4, output_tokens=16)
        w4 = dataclasses.replace(w3, rate=4.0)
        w5 = MixedLoad(num_streams=2, num_long=1, settle_seconds=1.0, quiet_seconds=1.0)
    return {
        "w2": _player(w2),
        "w3": _player(w3),
        "w4": _player(w4),
        "w5": lambda target, seed: play_mixed(w5, target, seed=seed),
    }


def _player(load: Workload) -> Player:
    async def run(target: Target, seed: int) -> Figures:
        return await play(dataclasses.replace(load, seed=seed), target, progress=lambda _: None)

    return run


def offline_prompts(workload: str, *, seed: int, quick: bool) -> tuple[list[list[int]], int]:
    """The prompts of W1 or W2 without HTTP, and how many tokens each is to be answered with."""
    load = _W3 if workload == "w1" else _W2
    if quick:
        load = dataclasses.replace(load, num_requests=min(8, load.num_requests), output_tokens=16)
    return prompts(dataclasses.replace(load, seed=seed)), load.output_tokens


def _gaps_within(outcomes: Sequence[Outcome], begin: float, end: float) -> list[float]:
    """Gaps between tokens, in seconds, that ended between two moments."""
    return [
        later - earlier
        for outcome in outcomes
        for earlier, later in itertools.pairwise(outcome.arrivals)
        if begin <= later < end
    ]


def _random_prompt(rng: random.Random, num_tokens: int) -> list[int]:
    return [rng.randint(1000, 40_000) for _ in range(num_tokens)]
