"""Points, summaries and a bench for tests of sweeps: a pool of which the latencies follow a formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from serving.contracts.tunables import Tunables
from serving.lab.experiments.bench import BrokenOff, Watch
from serving.lab.experiments.evidence import Evidence
from serving.lab.experiments.sweep_points import Estimate, Point
from serving.lab.summaries import Figures, Percentiles, RunSummary
from serving.lab.workloads.arrivals import ClosedLoop
from serving.lab.workloads.distributions import Fixed
from serving.lab.workloads.workload import RequestClass, Slo, Workload
from serving.telemetry.conditions import Reading

SLO_MS = 500.0


def a_workload(*, slo: Slo | None = None, clients: int = 16) -> Workload:
    chat = RequestClass(
        name="chat",
        prompt_tokens=Fixed(64),
        output_tokens=Fixed(32),
        slo=Slo(ttft_ms=SLO_MS) if slo is None else slo,
    )
    return Workload(name="chat-like", arrivals=ClosedLoop(clients), classes=(chat,), num_requests=100)


def a_point(
    value: Any, *, throughput: float, ttft: float, goodput: float | None = None, noise: float = 0.01, met: float = 1.0
) -> Point:
    use = ttft / SLO_MS
    return Point(
        value=value,
        is_simulated=False,
        num_repeats=3,
        num_requests=300,
        output_tokens_per_second=an_estimate(throughput, noise),
        requests_per_second=an_estimate(throughput / 32, noise),
        goodput_per_second=an_estimate(throughput / 32 if goodput is None else goodput, noise),
        latencies={"chat ttft": an_estimate(ttft, noise), "total ttft": an_estimate(ttft, noise)},
        slo_use=an_estimate(use, noise),
        slo_met_ratio=met,
        binding="chat ttft",
        keeps_slo=use <= 1 and met >= 0.95,
    )


def an_estimate(mean: float, noise: float = 0.01) -> Estimate:
    return Estimate(mean=mean, low=mean * (1 - noise), high=mean * (1 + noise))


def a_summary(*, throughput: float, ttft: float, is_simulated: bool = False, met: float = 1.0) -> RunSummary:
    latency = Percentiles(count=100, mean=ttft / 2, p50=ttft / 2, p90=ttft, p95=ttft, p99=ttft, max=ttft)
    figures = Figures(
        num_requests=100,
        num_finished=100,
        num_refused=0,
        num_failed=0,
        num_cancelled=0,
        num_delayed=0,
        requests_per_second=throughput / 32,
        prompt_tokens_per_second=2 * throughput,
        output_tokens_per_second=throughput,
        goodput_per_second=met * throughput / 32,
        slo_met_ratio=met,
        queue_ms=None,
        ttft_ms=latency,
        itl_ms=None,
        tpot_ms=None,
        e2e_ms=latency,
    )
    return RunSummary(
        workload="chat-like",
        is_simulated=is_simulated,
        is_open_loop=False,
        warm_up_seconds=0.0,
        measured_seconds=10.0,
        num_warm_up_requests=0,
        total=figures,
        classes={"chat": figures},
        moments=(),
    )


class FormulaBench:
    """Owns what was asked of it. `answer` gives throughput and TTFT p95 (ms) of tunables and workload."""

    def __init__(self, answer: Callable[[Mapping[str, Any], Workload], tuple[float, float]], **tunables: Any) -> None:
        self.pool = "default"
        self._answer = answer
        self._tunables = Tunables().changed(tunables).as_dict()
        self.played: list[dict[str, Any]] = []
        self.seeds: list[int] = []
        self.retuned: list[dict[str, Any]] = []
        self.paused: list[float] = []
        self.told: list[Mapping[str, Any]] = []
        self.others_by_run: dict[int, Mapping[str, Reading]] = {}
        self.overtaken_from_run: int | None = None

    def play(
        self, workload: Workload, *, title: str, point: Mapping[str, Any], watch: Watch | None = None
    ) -> RunSummary:
        self.played.append(dict(point))
        self.seeds.append(workload.seed)
        if watch is not None and (reason := watch()) is not None:
            raise BrokenOff(reason)
        throughput, ttft = self._answer(self._tunables, workload)
        return a_summary(throughput=throughput, ttft=ttft, met=1.0 if ttft <= SLO_MS else 0.5)

    def evidence(self) -> Evidence:
        return Evidence(outcomes=())

    def tunables(self) -> dict[str, Any]:
        return dict(self._tunables)

    def retune(self, changes: Mapping[str, Any], *, reason: str) -> int:
        self.retuned.append(dict(changes))
        self._tunables.update(changes)
        return len(self.retuned) + 1

    def overtaken(self) -> str | None:
        is_overtaken = self.overtaken_from_run is not None and len(self.played) >= self.overtaken_from_run
        return "ada stored version 9 meanwhile" if is_overtaken else None

    def others(self) -> Mapping[str, Reading]:
        return self.others_by_run.get(len(self.played), {})

    def pause(self, seconds: float) -> None:
        self.paused.append(seconds)

    def tell(self, progress: Mapping[str, Any]) -> None:
        self.told.append(progress)


def saturating(tunables: Mapping[str, Any], workload: Workload) -> tuple[float, float]:
    """A batch of n serves as n/(n + 8) of 800 tokens/s; the TTFT rises gently to a batch of 32, and steeply beyond."""
    size = tunables["max_running"]
    return 800 * size / (size + 8), 100 + 5 * size + max(0, size - 32) * 40
