"""The engine around the scheduler: failures, tunables, events, counts and records."""

from __future__ import annotations

import logging

import pytest

from serving.contracts.messages import Accepted, Finished
from serving.contracts.tunables import Tunables
from serving.engine.plan import StepPlan, StepResult
from serving.engine.stats import StepLog, StepRecord
from tests.engine.core.harness import World, submit


def _explode(plan: StepPlan) -> None:
    raise RuntimeError("device /dev/secret is on fire")


def test_a_failed_step_ends_its_sequences_and_the_engine_goes_on(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.retune(max_running=2)
    world.submit(*[submit(name, max_tokens=5, ignore_eos=True) for name in "abc"])
    world.step(2)
    world.runner.before_run = _explode
    with caplog.at_level(logging.ERROR):
        world.step()
    world.runner.before_run = None
    for name in "ab":
        ending = world.ending(name)
        assert isinstance(ending, Finished)
        assert ending.reason == "error"
        assert "RuntimeError" in ending.message
        assert "secret" not in ending.message
    assert caplog.records[0].exc_info is not None
    assert world.counts().kv_blocks_used == 0
    world.run()
    assert world.reason("c") == "length"
    assert [record.failed for record in world.engine.records_since(0)][:4] == [False, False, True, False]
    world.check_ended()


@pytest.mark.parametrize("token_ids", [[], [[]], [[1], [2]]])
def test_a_result_that_does_not_fit_the_plan_is_a_failed_step(
    world: World, monkeypatch: pytest.MonkeyPatch, token_ids: list[list[int]]
) -> None:
    world.submit(submit("a"))
    monkeypatch.setattr(world.runner, "run", lambda plan: StepResult(token_ids))
    world.step()
    assert world.reason("a") == "error"
    world.check_ended()


def test_an_older_version_of_the_tunables_is_ignored(world: World) -> None:
    world.engine.retune(7, Tunables(max_running=2))
    world.engine.retune(6, Tunables(max_running=9))
    assert world.engine.tunables_version == world.counts().tunables_version == 7
    world.submit(*[submit(f"r{i}") for i in range(5)])
    world.step()
    assert world.counts().num_running == 2


def test_tunables_take_effect_in_the_next_step(world: World) -> None:
    world.retune(max_running=1)
    world.submit(*[submit(f"r{i}", max_tokens=9, ignore_eos=True) for i in range(5)])
    world.step()
    world.retune(max_running=4)
    world.step()
    assert world.counts().num_running == 4


def test_what_commands_caused_is_told_by_the_next_step(world: World) -> None:
    world.retune(batch_window_ms=10_000)
    world.submit(submit("a"), submit("b", prompt=[]))
    world.abort("a")
    assert world.engine.has_work
    assert world.engine.next_wakeup() == world.now
    events = world.step()
    assert isinstance(events[0], Accepted)
    assert (world.reason("a"), world.reason("b")) == ("abort", "invalid_value")
    assert not world.engine.has_work
    assert world.engine.step() == []


def test_counts_tell_the_state_between_steps() -> None:
    world = World(num_blocks=32, tunables={"max_running": 2})
    world.submit(*[submit(f"r{i}", prompt=5, max_tokens=4, ignore_eos=True) for i in range(5)])
    world.step()
    counts = world.counts()
    assert (counts.num_running, counts.num_waiting, counts.num_waiting_tokens) == (2, 3, 15)
    assert (counts.kv_blocks_total, counts.kv_blocks_used, counts.kv_blocks_free) == (32, 4, 28)
    assert (counts.kv_blocks_cached, counts.block_size, counts.state) == (0, 4, "ready")
    assert (counts.steps_total, counts.prompt_tokens_total, counts.generated_tokens_total) == (1, 10, 2)
    world.step()
    counts = world.counts()
    assert (counts.prefill_tokens_total, counts.decode_tokens_total) == (10, 2)
    assert counts.step_seconds_total == pytest.approx(sum(step.total_seconds for step in world.engine.records_since(0)))


def test_the_context_limit_it_tells_is_the_one_it_keeps() -> None:
    assert World(num_blocks=10, block_size=16, max_model_len=4096).counts().max_model_len == 160
    assert World(num_blocks=10, block_size=16, max_model_len=100).counts().max_model_len == 100


def test_records_tell_who_was_in_each_step() -> None:
    world = World(num_blocks=8)
    world.submit(*[submit(name, prompt=14, max_tokens=5, ignore_eos=True) for name in "ab"])
    world.run()
    records = world.engine.records_since(0)
    assert [record.step for record in records] == list(range(1, world.counts().steps_total + 1))
    assert [(member.key.request_id, member.kind, member.num_tokens) for member in records[0].members] == [
        ("a", "prefill", 14),
        ("b", "prefill", 14),
    ]
    preempted = [record for record in records if any(member.kind == "preempted" for member in record.members)]
    assert len(preempted) == world.counts().preemptions_total == 1
    assert [key.request_id for record in records for key in record.ended] == ["a", "b"]
    assert world.engine.records_since(records[2].step)[0].step == records[3].step


def _record(step: int, started_at: float, seconds: float) -> StepRecord:
    return StepRecord(
        step=step,
        started_at=started_at,
        schedule_seconds=0.0,
        prepare_seconds=0.0,
        forward_seconds=seconds,
        sample_seconds=0.0,
        update_seconds=0.0,
        total_seconds=seconds,
        num_prefill_tokens=0,
        num_decode_tokens=1,
        num_padded_tokens=0,
        num_running=1,
        num_waiting=0,
        kv_blocks_used=1,
        tunables_version=1,
        mode="continuous",
        max_batch_tokens=512,
        members=(),
        ended=(),
        waiting=(),
        failed=False,
    )


def test_the_log_keeps_the_latest_records() -> None:
    log = StepLog(started_at=0.0, capacity=3)
    for step in range(1, 6):
        log.add(_record(step, float(step), 0.5))
    assert [record.step for record in log.since(0)] == [3, 4, 5]
    assert [record.step for record in log.since(4)] == [5]
    assert log.last_step_seconds == 0.5


def test_busy_ratio_is_the_share_of_the_last_seconds_spent_in_steps() -> None:
    log = StepLog(started_at=0.0, busy_window_seconds=10.0)
    assert log.busy_ratio(0.0) == 0.0
    log.add(_record(1, 0.0, 1.0))
    assert log.busy_ratio(4.0) == pytest.approx(0.25)
    log.add(_record(2, 4.0, 12.0))
    assert log.busy_ratio(16.0) == pytest.approx(1.0)
    assert log.busy_ratio(21.0) == pytest.approx(0.5)
    assert log.busy_ratio(40.0) == 0.0
