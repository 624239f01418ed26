"""A guided tuning run on the default model, as an operator does it: `python -m tests.lab.bench_guided`. Prints what
each step came to, and a table before and after; asserts nothing beyond that each page took what it was sent.

1. Traffic: a pool whose batch was set by intuition to few places serves chats and documents, at a rate a little above
   what these few places can keep up with.
2. Targets: `slo_ttft_ms` and `slo_itl_ms` are set, to twice what the simulator says that the default values give, so
   that they can be held on machines of any speed.
3. The workload is measured from the request log; the costs of steps are fitted to the engine's records.
4. Before: the measured workload is played.
5. Sweep: of two dimensions in turn, first simulated, then the best points in place on the engine.
6. Proposal: it is applied, behind the guardrail that its page fills in.
7. After: the same workload is played again, with the same seeds.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import datetime
import html
import json
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import aiohttp
import httpx
import msgspec

from serving.contracts.tunables import Tunables
from serving.engine.models.importer import import_model
from serving.lab.costs.default import DEFAULT_COST
from serving.lab.playing.player import Player
from serving.lab.playing.target import Target
from serving.lab.recording import Recorder
from serving.lab.workloads.arrivals import ClosedLoop, Poisson
from serving.lab.workloads.distributions import LogNormal
from serving.lab.workloads.workload import RequestClass, Workload
from tests.e2e.console import signed_in
from tests.e2e.stack import REPOSITORY, Stack
from tests.forms import fields_of
from tests.lab.paced import PacedStack
from tests.lab.rigs import MODEL, Model, StackRig

LAB: Final = "/console/lab/"
FEW_PLACES: Final = 3
DIMENSIONS: Final = (("max_running", "3,6,12,24"), ("max_batch_tokens", "96,192,384"))
_LOAD = 1.1
_ROOM = 2.0
_NAME = "guided"
_POLL_SECONDS = 2.0

TRAFFIC: Final = Workload(
    name="traffic",
    arrivals=Poisson(1.0),
    classes=(
        RequestClass(
            name="chat",
            share=0.85,
            prompt_tokens=LogNormal(median=150, sigma=0.6, low=16, high=800),
            output_tokens=LogNormal(median=48, sigma=0.5, low=8, high=160),
        ),
        RequestClass(
            name="document",
            share=0.15,
            prompt_tokens=LogNormal(median=500, sigma=0.4, low=200, high=1500),
            output_tokens=LogNormal(median=24, sigma=0.4, low=6, high=80),
        ),
    ),
    duration_seconds=60.0,
    seed=5,
)


@dataclasses.dataclass(frozen=True)
class Scale:
    """Seconds of the traffic, of each play before and after, of each point of the sweep; and how often a point, and the
    workload before and after, are played."""

    traffic: float
    play: float
    point: float
    point_repeats: int
    plays: int


QUICK: Final = Scale(traffic=30, play=15, point=8, point_repeats=1, plays=1)
WHOLE: Final = Scale(traffic=120, play=90, point=40, point_repeats=2, plays=2)


class Operator:
    """Owns a signed-in session; sends the console's forms as they stand, with changes."""

    def __init__(self, client: aiohttp.ClientSession) -> None:
        self._client = client

    async def open(self, path: str) -> str:
        """The page at `path`."""
        async with self._client.get(path) as answer:
            text = await answer.text()
            assert answer.status == 200, f"{path}: {answer.status}: {text[:500]}"
            return text

    async def send(self, path: str, **changes: str) -> str:
        """Send the form of the page at `path`, changed; the path that it led to. Raises AssertionError, with what
        stands beside the fields, where it was not taken."""
        fields = fields_of(await self.open(path)) | changes
        listed = {name: [value] if isinstance(value, str) else value for name, value in fields.items()}
        sent = [(name, each) for name, values in listed.items() for each in values]
        async with self._client.post(path, data=sent) as answer:
            text = await answer.text()
            problems = re.findall(r'class="(?:problem|field-error)[^>]*>(.*?)</p>', text, re.DOTALL)
            assert answer.status == 200, f"{path}: {answer.status}: {problems or text[:500]}"
            return str(answer.url.path)

    async def wait_for(self, path: str, text: str) -> str:
        """The page at `path` once it has that text."""
        page = await self.open(path)
        while text not in page:
            await asyncio.sleep(_POLL_SECONDS)
            page = await self.open(path)
        return page

    async def read(self, path: str) -> Any:
        """What is JSON at `path`."""
        return json.loads(await self.open(path))


def main(arguments: Sequence[str] | None = None) -> None:
    """Go through all steps, then print."""
    parser = argparse.ArgumentParser(prog="python -m tests.lab.bench_guided")
    parser.add_argument("--quick", action="store_true", help="seconds where it takes minutes, to see that it works")
    parser.add_argument("--paced", action="store_true", help="an engine that sleeps as long as its steps should take")
    parser.add_argument("--json", type=Path, help="where the figures go, beside standard output")
    options = parser.parse_args(arguments)
    model = import_model(None, into=REPOSITORY / "var" / "test-models")
    with tempfile.TemporaryDirectory(prefix="footplate-bench-") as name:
        home = Path(name)
        stack = PacedStack.paced(home, model, DEFAULT_COST) if options.paced else Stack.over(home, model).start()
        try:
            figures = asyncio.run(_guide(stack, QUICK if options.quick else WHOLE))
        finally:
            stack.stop()
    if options.json is not None:
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    _say(json.dumps(figures))
    _say("\n".join(table_of(figures)))


async def _guide(stack: Stack, scale: Scale) -> dict[str, Any]:
    rig = StackRig(stack)
    stack.tune(max_running=FEW_PLACES)
    since = datetime.datetime.now(datetime.UTC)
    rate, targets = await _serve_traffic(stack, rig, scale)
    stack.tune(**targets)
    stack.wait_until_settled()
    cost, _ = await asyncio.to_thread(rig.fit)
    async with signed_in(stack) as client:
        operator = Operator(client)
        measured = await _measure_workload(operator, since)
        before = await _play(operator, scale)
        sweep, said = await _sweep(operator, scale)
        changes, after = {}, []
        if sweep is not None:
            changes = await _apply(operator, sweep, stack)
            stack.wait_until_idle()
            after = await _play(operator, scale)
    return {
        "rate_per_second": rate,
        "targets": targets,
        "measured": measured,
        "fit": msgspec.to_builtins(cost.fit),
        "sweep_said": said,
        "changes": changes,
        "before": before,
        "after": after,
    }


async def _serve_traffic(stack: Stack, rig: StackRig, scale: Scale) -> tuple[float, dict[str, float]]:
    """The traffic that is measured later, after some that warms the engine and that a first fit is made on; its rate,
    with which the few places cannot quite keep up, and targets that the default values could hold."""
    for clients in (1, FEW_PLACES):
        await _ask(stack, msgspec.structs.replace(TRAFFIC, arrivals=ClosedLoop(clients), duration_seconds=12.0))
    few = Tunables().changed({"max_running": FEW_PLACES})
    cost, envelope = await asyncio.to_thread(rig.fit)
    saturated = msgspec.structs.replace(
        TRAFFIC, arrivals=ClosedLoop(FEW_PLACES), duration_seconds=300.0, warm_up_seconds=30.0
    )
    model = Model(cost, envelope)
    rate = round(_LOAD * model.play(saturated, few).total.requests_per_second, 3)
    total = model.play(msgspec.structs.replace(saturated, arrivals=Poisson(rate)), Tunables()).total
    assert total.ttft_ms is not None, "simulated streams have first tokens"
    assert total.tpot_ms is not None, "and further ones"
    targets = {
        name: float(f"{_ROOM * found.p95:.2g}")
        for name, found in (("slo_ttft_ms", total.ttft_ms), ("slo_itl_ms", total.tpot_ms))
    }
    _say(f"traffic: {rate} requests/s for {scale.traffic:g} s, {FEW_PLACES} places; targets: {targets}")
    await _ask(stack, msgspec.structs.replace(TRAFFIC, arrivals=Poisson(rate), duration_seconds=scale.traffic))
    return rate, targets


async def _ask(stack: Stack, workload: Workload) -> None:
    target = Target(url=stack.url, model=MODEL, key=stack.first_run["api_key"], pool="default")
    await Player(workload, target, recorder=Recorder(workload)).play()


async def _measure_workload(operator: Operator, since: datetime.datetime) -> dict[str, Any]:
    until = datetime.datetime.now(datetime.UTC)
    path = await operator.send(
        f"{LAB}measure-workload/",
        name=_NAME,
        pool="default",
        since=since.isoformat(),
        until=until.isoformat(),
        arrivals_as="fitted",
        act="save",
        reason="the first step of tuning",
    )
    assert path == f"{LAB}workloads/{_NAME}/", f"the workload was not stored: {path}"
    workload: dict[str, Any] = await operator.read(f"{path}file")
    _say(f"measured: {json.dumps(workload['arrivals'])}, {len(workload['classes'])} classes")
    return workload


async def _play(operator: Operator, scale: Scale) -> list[dict[str, Any]]:
    """The totals of the plays of the measured workload, at seeds that are the same each time."""
    totals = []
    for seed in range(1, scale.plays + 1):
        path = await operator.send(
            f"{LAB}runs/new/", workload=_NAME, pool="default", duration=f"{scale.play:g}", seed=str(seed), repeats="1"
        )
        await operator.wait_for(f"{path}state.json", '"is_over":true')
        state = (await operator.read(f"{path}state.json"))["state"]
        assert state == "finished", f"a run ended as {state}"
        report = await operator.read(f"{path}file/json")
        totals.append(report["summary"]["total"])
        _say(f"played with seed {seed}: TTFT p95 {totals[-1]['ttft_ms']['p95']:.0f} ms")
    return totals


async def _sweep(operator: Operator, scale: Scale) -> tuple[str | None, list[str]]:
    """The sweep's path (None: it proposes no change), and what it says of each dimension."""
    (first, first_values), (second, second_values) = DIMENSIONS
    path = await operator.send(
        f"{LAB}sweeps/new/",
        workload=_NAME,
        pool="default",
        seconds=f"{scale.point:g}",
        dimension=first,
        values=first_values,
        second_dimension=second,
        second_values=second_values,
        way="simulated_first",
        repeats=str(scale.point_repeats),
        settle_seconds="2",
    )
    page = await operator.wait_for(f"{path}part/", 'data-over="true"')
    said = [html.unescape(text) for text in re.findall(r'<p class="card-note">(.*?)</p>', page, re.DOTALL)]
    for line in said:
        _say(f"sweep: {line}")
    return path if f"{path}apply/" in page else None, said


async def _apply(operator: Operator, sweep: str, stack: Stack) -> dict[str, list[Any]]:
    """Store what the sweep proposes, as its page fills it in; each changed tunable's values before and after."""
    before = _tunables_of(stack)
    led_to = await operator.send(f"{sweep}apply/")
    assert led_to.endswith("/tuning/"), f"the change was not stored: {led_to}"
    return {name: [before[name], value] for name, value in _tunables_of(stack).items() if before[name] != value}


def _tunables_of(stack: Stack) -> dict[str, Any]:
    answer = httpx.get(f"{stack.url}/ops/v1/pools/default/tunables", headers=stack.headers, timeout=30)
    answer.raise_for_status()
    return dict(answer.json()["values"])


def table_of(figures: Mapping[str, Any]) -> list[str]:
    """What the plays before and after came to: means over the plays, in milliseconds where nothing else is said."""
    if not figures["changes"]:
        return ["nothing was changed: the sweep proposed nothing"]
    lines = [f"changed: {', '.join(f'{name} {old} → {new}' for name, (old, new) in figures['changes'].items())}"]
    lines.append(f"{'':<26}{'before':>12}{'after':>12}{'change':>10}")
    for title, (name, part) in _ROWS.items():
        before, after = (_mean_of(figures[when], name, part) for when in ("before", "after"))
        if before is None or after is None:
            continue
        change = f"{after / before - 1:+.0%}" if before else "–"
        lines.append(f"{title:<26}{before:>12,.2f}{after:>12,.2f}{change:>10}")
    return lines


_ROWS: Final[Mapping[str, tuple[str, str]]] = {
    "output tokens/s": ("output_tokens_per_second", ""),
    "goodput, requests/s": ("goodput_per_second", ""),
    "within targets, of 1": ("slo_met_ratio", ""),
    **{f"TTFT {part}": ("ttft_ms", part) for part in ("p50", "p90", "p95", "p99")},
    **{f"ITL {part}": ("itl_ms", part) for part in ("p50", "p95", "p99")},
    **{f"end to end {part}": ("e2e_ms", part) for part in ("p50", "p95")},
}


def _mean_of(totals: Sequence[Mapping[str, Any]], name: str, part: str) -> float | None:
    found = [total[name] if not part else (total[name] or {}).get(part) for total in totals]
    known = [float(value) for value in found if value is not None]
    return sum(known) / len(known) if known else None


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
