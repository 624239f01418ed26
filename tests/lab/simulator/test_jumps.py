"""Steps that are passed in one go lead to where single ones lead: every request's times, every counter, every block."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.contracts.tunables import Tunables
from serving.lab.costs.envelope import Envelope
from serving.lab.costs.model import CostModel
from serving.lab.recording import Recorder
from serving.lab.simulator.engine import SimulatedEngine
from serving.lab.simulator.work import steps_before
from serving.lab.summaries import Outcome
from serving.lab.workloads.arrivals import Arrivals, ClosedLoop, Gamma, Poisson
from serving.lab.workloads.distributions import Fixed, LogNormal, Uniform
from serving.lab.workloads.drawing import plan_requests
from serving.lab.workloads.workload import RequestClass, SharedPrefixes, Workload

COST = CostModel(
    step_seconds=0.004,
    prefill_token_seconds=0.0001,
    prefill_position_seconds=1e-8,
    decoding_seconds=0.0003,
    context_token_seconds=1e-6,
    request_seconds=0.002,
)
CLASSES = (
    RequestClass(
        name="chat",
        tenant="one",
        prompt_tokens=LogNormal(median=60, sigma=0.8, low=1, high=300),
        output_tokens=Uniform(low=1, high=80),
        prefixes=SharedPrefixes(share=0.6, tokens=40, count=2),
        cancelled_share=0.2,
    ),
    RequestClass(
        name="long",
        tenant="two",
        priority=1,
        share=0.3,
        prompt_tokens=Uniform(low=200, high=400),
        output_tokens=Fixed(tokens=50),
    ),
)


def played(
    arrivals: Arrivals, tunables: dict[str, Any], *, jumps: bool, num_blocks: int, seed: int
) -> tuple[list[Outcome], dict[str, Any], Recorder]:
    workload = Workload(name="any", arrivals=arrivals, classes=CLASSES, num_requests=40, duration_seconds=60, seed=seed)
    recorder = Recorder(workload, is_simulated=True)
    engine = SimulatedEngine(
        tunables=Tunables().changed(tunables),
        envelope=Envelope(num_blocks=num_blocks, block_size=16, max_model_len=1024),
        cost=COST,
        recorder=recorder,
        jumps=jumps,
    )
    requests = plan_requests(workload)
    if isinstance(arrivals, ClosedLoop):
        engine.play_closed(
            requests, clients=arrivals.clients, think_seconds=arrivals.think_seconds, duration_seconds=60
        )
    else:
        engine.play_open(requests)
    engine.check_invariants()
    return sorted(recorder.outcomes, key=lambda outcome: outcome.index), engine.books(), recorder


ARRIVALS = st.one_of(
    st.builds(Poisson, rate=st.sampled_from([1.0, 5.0, 40.0])),
    st.builds(Gamma, rate=st.sampled_from([2.0, 20.0]), cv=st.sampled_from([0.5, 4.0])),
    st.builds(ClosedLoop, clients=st.integers(1, 12), think_seconds=st.sampled_from([0.0, 0.3])),
)
TUNABLES = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["continuous", "static"]),
        "order": st.sampled_from(["fcfs", "priority", "fair"]),
        "max_running": st.sampled_from([1, 3, 8, 64]),
        "max_batch_tokens": st.sampled_from([16, 64, 512]),
        "max_prefill_chunk": st.sampled_from([16, 512]),
        "prefill_share": st.sampled_from([0.0, 0.5, 1.0]),
        "batch_window_ms": st.sampled_from([0.0, 5.0, 200.0]),
        "max_queue_requests": st.sampled_from([3, 200]),
        "max_queue_wait_ms": st.sampled_from([300.0, 60_000.0]),
        "prefix_caching": st.sampled_from(["on", "off"]),
        "early_reject": st.sampled_from(["on", "off"]),
        "kv_limit_ratio": st.sampled_from([0.6, 1.0]),
    }
)


@pytest.mark.heavy
@given(arrivals=ARRIVALS, tunables=TUNABLES, num_blocks=st.sampled_from([64, 90, 400]), seed=st.integers(0, 2**20))
@settings(max_examples=60)
def test_stretches_that_are_passed_lead_to_where_single_steps_lead(
    arrivals: Arrivals, tunables: dict[str, Any], num_blocks: int, seed: int
) -> None:
    single, single_books, single_recorder = played(arrivals, tunables, jumps=False, num_blocks=num_blocks, seed=seed)
    passed, passed_books, recorder = played(arrivals, tunables, jumps=True, num_blocks=num_blocks, seed=seed)
    assert len(single) == len(passed)
    for expected, found in zip(single, passed, strict=True):
        assert msgspec.structs.asdict(found) == pytest.approx(msgspec.structs.asdict(expected), abs=1e-6)
    assert passed_books == single_books
    of_single, of_passed = single_recorder.summary(wall_seconds=60), recorder.summary(wall_seconds=60)
    if of_single.total.itl_ms is not None:
        assert of_passed.total.itl_ms is not None
        assert of_passed.total.itl_ms.count == of_single.total.itl_ms.count
        assert of_passed.total.itl_ms.mean == pytest.approx(of_single.total.itl_ms.mean, rel=1e-3)
        assert of_passed.total.itl_ms.p50 == pytest.approx(of_single.total.itl_ms.p50, rel=0.03)
    tokens = [sum(moment.output_tokens_per_second for moment in each.moments) for each in (of_single, of_passed)]
    assert tokens[1] == pytest.approx(tokens[0], rel=1e-3)


@given(
    first=st.floats(1e-4, 1.0),
    growth=st.one_of(st.just(0.0), st.floats(1e-9, 1e-2)),
    horizon=st.floats(1e-5, 200.0),
    most=st.integers(1, 3000),
)
def test_as_many_steps_are_passed_as_begin_before_the_next_event(
    first: float, growth: float, horizon: float, most: int
) -> None:
    count = steps_before(horizon, first, growth, most=most)
    lengths = itertools.accumulate((first + growth * number for number in range(most)), initial=0.0)
    begins = list(itertools.islice(lengths, most))
    assert 1 <= count <= most
    assert begins[count - 1] < horizon + 1e-6
    assert count == most or begins[count] >= horizon - 1e-6


def test_nothing_begins_where_no_time_is_left() -> None:
    assert steps_before(0.0, 0.1, 0.0, most=5) == 0


def test_a_quiet_hour_takes_few_looks_at_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Most steps of long answers are passed over."""
    from serving.engine.scheduler import Scheduler

    calls = 0
    schedule = Scheduler.schedule

    def counting(self: Scheduler, now: float) -> Any:
        nonlocal calls
        calls += 1
        return schedule(self, now)

    monkeypatch.setattr(Scheduler, "schedule", counting)
    _, books, _ = played(Poisson(rate=0.2), {}, jumps=True, num_blocks=400, seed=3)
    assert calls < books["steps"] / 3
