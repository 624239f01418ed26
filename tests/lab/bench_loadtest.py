"""The load tester beside a public one: `python -m tests.lab.bench_loadtest`. Prints JSON and a table; asserts nothing.

Both ask the same running product for the same: prompts and answers of fixed lengths, once from clients that wait for
their answers and once at a constant rate, so that chance has little to do with it. They take turns, and each one's
own plays say how far apart two plays are by chance: means agree where they are no farther apart than that. The public
one is guidellm 0.3.1 (`make bench-peers` installs it); a third, written in thirty lines with the `openai` client, tells
who is right where the two are not at one.

guidellm gets one worker process that looks for work every 2 ms: by default it has ten that look 10,000 times a second,
and takes from a machine with two cores the time that the server needs.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from openai import AsyncOpenAI

from serving.engine.models.importer import import_model
from serving.lab.costs.default import DEFAULT_COST
from serving.lab.playing.player import Player
from serving.lab.playing.target import Target
from serving.lab.recording import Recorder
from serving.lab.workloads.arrivals import Arrivals, ClosedLoop, Constant
from serving.lab.workloads.distributions import Fixed
from serving.lab.workloads.workload import RequestClass, Workload
from tests.bench.places import Places, peers_home
from tests.e2e.stack import REPOSITORY, Stack
from tests.lab.paced import PacedStack
from tests.lab.rigs import MODEL

PROMPT_TOKENS, OUTPUT_TOKENS = 192, 48
SHAPES: Final[Mapping[str, Arrivals]] = {"4 clients": ClosedLoop(4), "1.5 a second": Constant(1.5)}
FIGURES: Final = ("output tokens/s", "TTFT p50, ms", "TTFT p95, ms", "TPOT p50, ms", "TPOT p95, ms")
"""TPOT is a request's mean gap between tokens: guidellm, which calls it inter-token latency, keeps no other gap."""

_WARM_UP_REQUESTS = 12
_GUIDELLM_SETTINGS = {
    "GUIDELLM__MAX_WORKER_PROCESSES": "1",
    "GUIDELLM__DEFAULT_ASYNC_LOOP_SLEEP": "0.002",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Request:
    """One answered request: when it was sent, its first and last text and its end, in seconds of one clock, and its
    lengths in tokens."""

    sent_at: float
    first_at: float
    last_at: float
    end_at: float
    prompt_tokens: int
    output_tokens: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Case:
    """What a tester is to do."""

    url: str
    key: str
    model_folder: Path
    arrivals: Arrivals
    num_requests: int
    seed: int


Tester = Callable[[Case], list[Request]]


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure by turns, then print."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench_loadtest")
    parser.add_argument("--quick", action="store_true", help="twelve requests a play, two plays of each")
    parser.add_argument("--paced", action="store_true", help="an engine that sleeps as long as its steps should take")
    parser.add_argument("--requests", type=int, default=60, help="of each play")
    parser.add_argument("--rounds", type=int, default=4, help="plays of each tester and shape")
    parser.add_argument("--json", type=Path, help="where the figures go, beside standard output")
    options = parser.parse_args(arguments)
    count, rounds = (12, 2) if options.quick else (options.requests, options.rounds)
    model = import_model(None, into=REPOSITORY / "var" / "test-models")
    testers = {"ours": ask_with_ours, "openai client": ask_with_openai}
    if guidellm_command().exists():
        testers["guidellm"] = ask_with_guidellm
    else:
        sys.stderr.write(f"bench: no guidellm at {guidellm_command()}: `make bench-peers` installs it\n")
    with tempfile.TemporaryDirectory(prefix="footplate-bench-") as name:
        home = Path(name)
        stack = PacedStack.paced(home, model, DEFAULT_COST) if options.paced else Stack.over(home, model).start()
        try:
            figures = _measure(stack, model, testers, num_requests=count, rounds=rounds)
        finally:
            stack.stop()
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    sys.stdout.write("\n".join([json.dumps(figures), *table_of(figures)]) + "\n")


def _measure(
    stack: Stack, model: Path, testers: Mapping[str, Tester], *, num_requests: int, rounds: int
) -> dict[str, list[dict[str, Any]]]:
    """By shape: the plays in their order, each with its tester and figures."""
    case = Case(
        url=stack.url,
        key=stack.first_run["api_key"],
        model_folder=model,
        arrivals=ClosedLoop(4),
        num_requests=_WARM_UP_REQUESTS,
        seed=1,
    )
    ask_with_ours(case)  # kernels, caches and threads are warm then
    plays: dict[str, list[dict[str, Any]]] = {shape: [] for shape in SHAPES}
    for number in range(rounds):
        for shape, arrivals in SHAPES.items():
            order = list(testers.items())
            # Nobody is always the first.
            for name, ask in order[number % len(order) :] + order[: number % len(order)]:
                stack.wait_until_idle()
                seed = random.Random(f"{name} {number} {shape}").randrange(2**31)
                requests = ask(dataclasses.replace(case, arrivals=arrivals, num_requests=num_requests, seed=seed))
                plays[shape].append({"tester": name} | figures_of(requests))
                sys.stderr.write(f"{number + 1}: {shape}, {name}: {len(requests)} requests\n")
    return plays


# --- testers ---------------------------------------------------------------------------------------------------------


def ask_with_ours(case: Case) -> list[Request]:
    """The load tester."""
    workload = Workload(
        name="fixed",
        arrivals=case.arrivals,
        classes=(RequestClass(name="fixed", prompt_tokens=Fixed(PROMPT_TOKENS), output_tokens=Fixed(OUTPUT_TOKENS)),),
        num_requests=case.num_requests,
        seed=case.seed,
    )
    recorder = Recorder(workload)
    asyncio.run(Player(workload, Target(url=case.url, key=case.key, model=MODEL), recorder=recorder).play())
    requests = []
    for each in recorder.outcomes:
        assert each.ttft_seconds is not None, f"a request was not answered: {each}"
        assert each.tpot_seconds is not None, "an answer has several tokens"
        first_at = each.due_seconds + each.ttft_seconds
        requests.append(
            Request(
                sent_at=each.due_seconds,
                first_at=first_at,
                last_at=first_at + each.tpot_seconds * (each.num_output_tokens - 1),
                end_at=each.end_seconds,
                prompt_tokens=each.num_prompt_tokens,
                output_tokens=each.num_output_tokens,
            )
        )
    return requests


def guidellm_command() -> Path:
    """Where `make bench-peers` puts it."""
    return Places(peers=peers_home(), model=Path(), scratch=Path()).guidellm


def ask_with_guidellm(case: Case) -> list[Request]:
    """The public one, by its command and the file that it writes."""
    if isinstance(case.arrivals, ClosedLoop):
        kind, rate = "concurrent", float(case.arrivals.clients)
    else:
        assert isinstance(case.arrivals, Constant), "there is no other shape"
        kind, rate = "constant", case.arrivals.rate
    data = {"prompt_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS, "samples": case.num_requests}
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "report.json"
        command = [
            *(str(guidellm_command()), "benchmark", "run", "--target", case.url, "--model", MODEL),
            *("--processor", str(case.model_folder), "--data", json.dumps(data), "--random-seed", str(case.seed)),
            *("--rate-type", kind, "--rate", str(rate), "--max-requests", str(case.num_requests)),
            *("--disable-progress", "--disable-console-outputs", "--output-path", str(file)),
        ]
        environment = os.environ | _GUIDELLM_SETTINGS | {"GUIDELLM__OPENAI__API_KEY": case.key}
        ended = subprocess.run(command, env=environment, cwd=name, capture_output=True, text=True, check=False)
        if not file.exists():
            raise RuntimeError(f"guidellm wrote no report:\n{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}")
        return read_guidellm(json.loads(file.read_text()), is_open=kind == "constant")


def read_guidellm(report: Mapping[str, Any], *, is_open: bool) -> list[Request]:
    """The answered requests of its report. As ours do, one counts from when it was due, in a closed loop from when it
    was sent: there its targeted time is when it was put in guidellm's own queue."""
    (benchmark,) = report["benchmarks"]
    return [
        Request(
            sent_at=each["scheduler_info"]["targeted_start_time"] if is_open else each["start_time"],
            first_at=each["first_token_time"],
            last_at=each["last_token_time"],
            end_at=each["end_time"],
            prompt_tokens=each["prompt_tokens"],
            output_tokens=each["output_tokens"],
        )
        for each in benchmark["requests"]["successful"]
    ]


def ask_with_openai(case: Case) -> list[Request]:
    """Thirty lines with the `openai` client."""
    return asyncio.run(_ask_with_openai(case))


async def _ask_with_openai(case: Case) -> list[Request]:
    rng, began = random.Random(case.seed), time.monotonic()
    numbers = iter(range(case.num_requests))

    async def ask(due: float) -> Request:
        stream = await client.completions.create(
            model=MODEL,
            prompt=rng.choices(range(1000, 40_000), k=PROMPT_TOKENS),
            max_tokens=OUTPUT_TOKENS,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        arrivals = [time.monotonic() async for event in stream if event.choices and event.choices[0].text]
        return Request(
            sent_at=due,
            first_at=arrivals[0],
            last_at=arrivals[-1],
            end_at=time.monotonic(),
            prompt_tokens=PROMPT_TOKENS,
            output_tokens=OUTPUT_TOKENS,
        )

    async def be_client() -> list[Request]:
        return [await ask(time.monotonic()) for _ in numbers]

    async def ask_at(due: float) -> Request:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        return await ask(due)

    async with AsyncOpenAI(base_url=f"{case.url}/v1", api_key=case.key, max_retries=0) as client:
        if isinstance(case.arrivals, ClosedLoop):
            by_client = await asyncio.gather(*(be_client() for _ in range(case.arrivals.clients)))
            return [each for seen in by_client for each in seen]
        assert isinstance(case.arrivals, Constant), "there is no other shape"
        return await asyncio.gather(*(ask_at(began + number / case.arrivals.rate) for number in numbers))


# --- figures ---------------------------------------------------------------------------------------------------------


def figures_of(requests: Sequence[Request]) -> dict[str, float]:
    """What is compared, computed from all testers' requests in the same way: a rate counts from the first request to
    the last end. Raises `ValueError` where there are none."""
    if not requests:
        raise ValueError("no request was answered")
    seconds = max(each.end_at for each in requests) - min(each.sent_at for each in requests)
    ttfts = [(each.first_at - each.sent_at) * 1e3 for each in requests]
    tpots = [(each.last_at - each.first_at) / max(1, each.output_tokens - 1) * 1e3 for each in requests]
    values = (
        sum(each.output_tokens for each in requests) / seconds,
        *(float(np.quantile(ttfts, share)) for share in (0.5, 0.95)),
        *(float(np.quantile(tpots, share)) for share in (0.5, 0.95)),
    )
    return {
        **{name: round(value, 3) for name, value in zip(FIGURES, values, strict=True)},
        "requests": len(requests),
        "mean prompt tokens": round(float(np.mean([each.prompt_tokens for each in requests])), 1),
        "mean output tokens": round(float(np.mean([each.output_tokens for each in requests])), 1),
    }


def spread_of(values: Sequence[float]) -> float:
    """How far two plays of the same are apart by chance: the standard deviation of single plays."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def table_of(figures: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """Of each shape and figure: each tester's mean and spread over its plays, and how far it is from ours."""
    lines = []
    for shape, plays in figures.items():
        testers = list(dict.fromkeys(play["tester"] for play in plays))
        testers.sort(key=lambda name: name != "ours")
        lines.append(f"{shape:<18}" + "".join(f"{name:>32}" for name in testers))
        for figure in (*FIGURES, "mean prompt tokens", "mean output tokens"):
            ours = float(np.mean([play[figure] for play in plays if play["tester"] == "ours"]))
            cells = []
            for name in testers:
                values = [play[figure] for play in plays if play["tester"] == name]
                mean = float(np.mean(values))
                cells.append(f"{f'{mean:.1f} ± {spread_of(values):.1f} ({mean / ours - 1:+.1%})':>32}")
            lines.append(f"{figure:<18}" + "".join(cells))
    return lines


if __name__ == "__main__":
    main()
