"""Results of the Lab as the database has them, for tests of the seven steps."""

from __future__ import annotations

import datetime
from typing import Any

import msgspec
from django.utils import timezone

from serving.contracts.ids import PoolName
from serving.lab.experiments.overload_plan import OverloadPlan
from serving.lab.experiments.overload_results import Verdict
from serving.lab.experiments.sweep_plan import Dimension, SweepPlan
from serving.lab.experiments.three_ways_plan import ThreeWaysPlan
from serving.lab.fingerprints import Fingerprint
from serving.lab.models import Experiment, Run
from serving.lab.summaries import Figures, Percentiles, RunSummary
from serving.lab.workloads.codec import workload_to_dict
from serving.lab.workloads.distributions import Fixed
from serving.lab.workloads.workload import Workload
from tests.lab.workloads.shapes import request_class, workload

POOL = PoolName("default")
ENGINE = Fingerprint(
    model="tiny", device="cpu", dtype="float32", backend="own", max_model_len=1024, kv_blocks=100, num_engines=1
)
"""What `tests.telemetry.conftest.snapshot` tells of itself, with the backend `own`."""
OTHER = msgspec.structs.replace(ENGINE, model="older")
MIXED = workload(
    name="mixed",
    classes=(request_class("short"), request_class("long", prompt_tokens=Fixed(3000))),
    duration_seconds=10.0,
)
PLANS = {
    "sweep": SweepPlan(workload=workload(), dimensions=(Dimension(name="max_running", values=(2, 4)),)),
    "overload": OverloadPlan(workload=workload()),
    "three_ways": ThreeWaysPlan(workload=workload()),
}
_PERCENTILES = Percentiles(count=9, mean=10, p50=9, p90=20, p95=30, p99=40, max=50)


def figures(**changes: Any) -> Figures:
    """Figures of 9 requests that finished, but for `changes`."""
    counts = dict.fromkeys(("num_refused", "num_failed", "num_cancelled", "num_delayed"), 0)
    rates = {"requests_per_second": 1.0, "prompt_tokens_per_second": 200.0, "output_tokens_per_second": 50.0}
    times = dict.fromkeys(("queue_ms", "ttft_ms", "itl_ms", "tpot_ms", "e2e_ms"), _PERCENTILES)
    facts = {"num_requests": 9, "num_finished": 9, "goodput_per_second": 1.0, "slo_met_ratio": 1.0}
    return Figures(**{**facts, **counts, **rates, **times, **changes})


def summary(*, peak_host_memory_bytes: int | None = 2**30, **changes: Any) -> RunSummary:
    """What a run of 10 s came to, but for `changes` of its figures."""
    return RunSummary(
        workload="some",
        is_simulated=False,
        is_open_loop=True,
        warm_up_seconds=0,
        measured_seconds=10,
        num_warm_up_requests=0,
        total=figures(**changes),
        classes={},
        moments=(),
        peak_host_memory_bytes=peak_host_memory_bytes,
    )


def keep_run(played: Workload | None = None, *, found: RunSummary | None = None, **changes: Any) -> Run:
    """A run that finished a minute ago on `ENGINE`, but for `changes`."""
    facts = {"title": "some on default", "pool": POOL, "author": "ann", "state": "finished", "ended_at": minutes_ago(1)}
    return Run.objects.create(
        **{
            **facts,
            "workload": workload_to_dict(played or workload()),
            "target": {"url": "http://127.0.0.1:1", "model": "tiny", "pool": POOL},
            "summary": msgspec.to_builtins(found or summary()),
            "fingerprint": msgspec.to_builtins(ENGINE),
            **changes,
        }
    )


def keep_experiment(kind: str, *, plan: Any = None, **changes: Any) -> Experiment:
    """An experiment that finished a minute ago on `ENGINE`, but for `changes`."""
    results = {
        "sweep": {"says": "the SLO broke at 16", "changes": {"max_running": [4, 8]}},
        "overload": {"verdicts": verdicts()},
        "three_ways": {"conclusions": ["Static costs most."]},
    }
    facts = {"pool": POOL, "title": f"{kind} of some", "author": "ann", "state": "finished"}
    kept = Experiment.objects.create(
        **{
            **facts,
            "kind": kind,
            "plan": msgspec.to_builtins(plan or PLANS[kind]),
            "result": results[kind],
            "ended_at": minutes_ago(1),
            "fingerprint": msgspec.to_builtins(ENGINE),
            **changes,
        }
    )
    kept.refresh_from_db()
    return kept


def verdicts(*failed: str) -> list[dict[str, Any]]:
    """Of three criteria one could not be judged, and these failed."""
    judged = {"bounds": "passed", "refusals": "passed", "fairness": "not judged"} | dict.fromkeys(failed, "failed")
    facts = {"bound": "b", "measured": "m", "evidence": "e"}
    return [msgspec.to_builtins(Verdict(name=n, title=f"The {n} hold", judged=j, **facts)) for n, j in judged.items()]  # type: ignore[arg-type]


def minutes_ago(minutes: float) -> datetime.datetime:
    """So long before now."""
    return timezone.now() - datetime.timedelta(minutes=minutes)
