"""Anything in any order: submits, aborts, failures, retuning and time, with all that holds checked after each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from serving.contracts.ids import OwnerId
from serving.contracts.messages import Finished, Submit
from serving.contracts.tunables import describe
from serving.engine.plan import StepPlan
from tests.engine.core.harness import World, submit
from tests.engine.core.machines import run_machine
from tests.engine.core.runners import AheadCacheRunner

pytestmark = pytest.mark.heavy

_OWNERS = st.sampled_from([OwnerId("web-1"), OwnerId("web-2")])
_TUNABLES = {
    "mode": st.sampled_from(["continuous", "static"]),
    "batch_window_ms": st.sampled_from([0.0, 0.0, 0.0, 30.0, 400.0]),
    "max_running": st.sampled_from([8, 6, 5, 4, 3, 2, 1]),
    "max_batch_tokens": st.integers(16, 64),
    "max_prefill_chunk": st.integers(1, 40),
    "prefill_share": st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    "max_queue_requests": st.integers(1, 100),
    "max_queue_tokens": st.integers(1, 1000),
    "max_queue_wait_ms": st.sampled_from([60_000.0, 60_000.0, 60_000.0, 6000.0, 500.0]),
    "long_prompt_tokens": st.sampled_from([1024, 30, 15, 7, 1]),
    "max_long_prefills": st.sampled_from([1, 1, 2, 8]),
    "long_prompt_pool": st.sampled_from(["", "bulk"]),
    "order": st.sampled_from(["fcfs", "priority", "fair"]),
    "urgent_queue_ratio": st.sampled_from([0.0, 0.1, 0.9]),
    "slo_ttft_ms": st.sampled_from([1.0, 10_000.0]),
    "slo_itl_ms": st.sampled_from([1.0, 200.0]),
    "early_reject": st.sampled_from(["off", "on"]),
    "kv_limit_ratio": st.sampled_from([1.0, 1.0, 0.8, 0.5, 0.01]),
    "kv_watermark_ratio": st.sampled_from([0.0, 0.02, 0.5]),
    "prefix_caching": st.sampled_from(["on", "off"]),
    "speculation": st.sampled_from(["off", "on"]),
    "max_draft_tokens": st.sampled_from([8, 4, 1, 16]),
}
_REQUESTS = st.fixed_dictionaries(
    {
        "prompt": st.sampled_from([5, 8, 13, 16, 19, 3, 11, 7, 22, 1, 40, 0]),
        "max_tokens": st.sampled_from([14, 24, 20, 1, 4, 8, 30]),
        "owner": _OWNERS,
        "ignore_eos": st.booleans(),
        "min_tokens": st.sampled_from([0, 0, 1]),
        "stop_token_ids": st.sampled_from([(), (), (3,), (3, 9, 24)]),
        "waited": st.sampled_from([0.0, 0.0, 0.3, 5.0]),
        "tenant": st.sampled_from(["ann", "ann", "bob", "cleo"]),
        "stem": st.sampled_from(["", "", "s", "t"]),
        "priority": st.sampled_from([0, 0, -2, 1, 100]),
        "weight": st.sampled_from([1.0, 1.0, 3.0, 0.25]),
        "timeout_seconds": st.sampled_from([None, None, None, 9.0, 0.4, 5.2, 0.0, float("nan")]),
        "cache_salt": st.sampled_from(["", "", "", "pepper"]),
        "num_logprobs": st.sampled_from([None, None, 0, 2]),
        "frequency_penalty": st.sampled_from([0.0] * 7 + [0.5]),
    }
)
"""The pool holds 48 tokens: a few are refused, most want half of it or more."""


def test_every_tunable_is_retuned_at_random() -> None:
    assert set(_TUNABLES) == {spec.name for spec in describe()}


class EngineMachine(RuleBasedStateMachine):
    """Owns a world with a small pool, so that memory is short most of the time."""

    looks_ahead = False

    def __init__(self) -> None:
        super().__init__()
        self.world = World(num_blocks=12, vocab_size=60, looks_ahead=self.looks_ahead)
        self.num_requests = 0
        self.may_drain = False

    @initialize(may_drain=st.integers(0, 3).map(lambda number: number == 3), tunables=st.fixed_dictionaries(_TUNABLES))
    def choose_life(self, may_drain: bool, tunables: dict[str, Any]) -> None:
        self.may_drain = may_drain
        self.world.retune(**tunables)

    # --- what owners do ----------------------------------------------------------------------------------------------

    @rule(
        requests=st.lists(_REQUESTS, min_size=1, max_size=5),
        num_choices=st.sampled_from([1, 1, 1, 2, 3, 4]),
        num_reading=st.sampled_from([0, 0, 0, 1, 4]),
    )
    def submit_requests(self, requests: list[dict[str, Any]], num_choices: int, num_reading: int) -> None:
        """`num_reading` choices of each request ask how probable its prompt is."""
        for request in requests:
            self.num_requests += 1
            for choice in range(num_choices):
                reading = {"num_prompt_logprobs": 0 if choice < num_reading else None}
                self.world.submit(submit(f"r{self.num_requests}", choice=choice, seed=choice, **reading, **request))

    @rule(requests=st.lists(_REQUESTS, min_size=1, max_size=3))
    def submit_for_embeddings(self, requests: list[dict[str, Any]]) -> None:
        for request in requests:
            self.num_requests += 1
            of_no_token = {"max_tokens": 0, "min_tokens": 0, "num_logprobs": None, "embeds": True}
            self.world.submit(submit(f"r{self.num_requests}", **{**request, **of_no_token}))

    @precondition(lambda self: self.world.ledger.submitted)
    @rule(data=st.data())
    def submit_again(self, data: st.DataObject) -> None:
        """A duplicate or an older attempt: nobody must notice."""
        request = self._pick(data)
        self.world.engine.submit(_attempt(request, data.draw(st.integers(0, request.attempt)), request.generated_ids))

    @precondition(lambda self: self.world.ledger.open_keys)
    @rule(data=st.data(), kept=st.integers(0, 30))
    def resubmit_as_new_attempt(self, data: st.DataObject, kept: int) -> None:
        """What an owner does that believes its engine dead: it goes on after the tokens that it has."""
        request = self.world.ledger.submitted[data.draw(st.sampled_from(self.world.ledger.open_keys))]
        delivered = self.world.ledger.tokens[request.key][:kept]
        self.world.submit(_attempt(request, request.attempt + 1, delivered))

    @precondition(lambda self: self.world.ledger.submitted)
    @rule(data=st.data(), what=st.sampled_from(["abort", "abort choice", "abort unseen", "lose owner"]))
    def abandon(self, data: st.DataObject, what: str) -> None:
        if what == "abort":
            self.world.abort(self._pick(data).key.request_id, *range(4))
        elif what == "abort choice":
            key = self._pick(data).key
            self.world.abort(key.request_id, key.choice)
        elif what == "abort unseen":
            self.world.abort(f"r{self.num_requests + 2}")
        else:
            self.world.engine.abort_owner(data.draw(_OWNERS))

    # --- what operators and time do ----------------------------------------------------------------------------------

    @rule(data=st.data(), name=st.sampled_from(sorted(_TUNABLES)))
    def retune(self, data: st.DataObject, name: str) -> None:
        self.world.retune(**{name: data.draw(_TUNABLES[name])})

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.03, 0.2, 2.0]))
    def let_time_pass(self, seconds: float) -> None:
        self.world.now += seconds

    @rule(count=st.integers(1, 6))
    def step(self, count: int) -> None:
        self.world.step(count)

    @rule(count=st.integers(7, 30))
    def step_on(self, count: int) -> None:
        self.world.step(count)

    @rule(data=st.data(), what=st.sampled_from(["abort", "resubmit", "submit", "submit", "fail row", "fail step"]))
    def step_with_something_in_flight(self, data: st.DataObject, what: str) -> None:
        self.world.runner.before_run = self._interference(data, what)
        self.world.step()
        self.world.runner.before_run = None
        self.world.runner.failing_keys = set()

    def _interference(self, data: st.DataObject, what: str) -> Callable[[StepPlan], None]:
        def interfere(plan: StepPlan) -> None:
            if what == "fail step":
                raise RuntimeError("scripted failure")
            request = self.world.ledger.submitted[data.draw(st.sampled_from(plan.chunks)).key]
            if what == "abort":
                self.world.abort(request.key.request_id, *range(4))
            elif what == "fail row":
                self.world.runner.failing_keys = {request.key}
            elif what == "resubmit":
                delivered = self.world.ledger.tokens[request.key]
                self.world.submit(_attempt(request, request.attempt + 1, delivered))
            else:
                self.num_requests += 1
                self.world.submit(submit(f"r{self.num_requests}", prompt=6, max_tokens=4))

        return interfere

    @precondition(lambda self: self.may_drain)
    @rule(chance=st.integers(0, 19))
    def drain(self, chance: int) -> None:
        if chance == 19:
            self.world.engine.drain()

    # --- what holds --------------------------------------------------------------------------------------------------

    @invariant()
    def books_agree(self) -> None:
        world = self.world
        world.engine.check_invariants()
        counts = world.counts()
        assert counts.kv_blocks_free + counts.kv_blocks_used + counts.kv_blocks_cached == counts.kv_blocks_total
        assert (counts.kv_blocks_used > 0) == (counts.num_running > 0)
        if not world.engine.has_work:
            assert world.ledger.open_keys == []
            assert world.engine.next_wakeup() is None
        for key in world.ledger.open_keys:
            world.check_tokens(key)

    def teardown(self) -> None:
        world = self.world
        world.runner.before_run = None
        outstanding = sum(
            len(world.ledger.submitted[key].prompt_ids) + world.ledger.submitted[key].params.max_tokens
            for key in world.ledger.open_keys
        )
        # One token a step would do it; recomputing takes a part more.
        world.run(max_steps=100 + 3 * outstanding)
        world.check_ended()
        for ending in world.ledger.endings.values():
            if isinstance(ending, Finished) and ending.reason == "error":
                assert ending.message in {"bad logits", "the engine failed to compute a step (RuntimeError)"}

    def _pick(self, data: st.DataObject) -> Submit:
        keys = list(self.world.ledger.submitted)
        return self.world.ledger.submitted[keys[-1 - data.draw(st.integers(0, min(len(keys) - 1, 12)))]]


class AheadMachine(EngineMachine):
    """The same with a plan in flight between steps."""

    looks_ahead = True

    @rule(chance=st.integers(0, 3))
    def fail_to_launch(self, chance: int) -> None:
        self._ahead_runner.failing_launches = int(chance == 3)

    @invariant()
    def nobody_gives_way_for_a_step_ahead(self) -> None:
        departed = self.world.engine._departed
        assert departed is None or not (departed.is_behind and departed.preempted_keys)

    def teardown(self) -> None:
        self._ahead_runner.failing_launches = 0
        super().teardown()
        assert self.world.engine._departed is None

    @property
    def _ahead_runner(self) -> AheadCacheRunner:
        assert isinstance(self.world.runner, AheadCacheRunner)
        return self.world.runner


def _attempt(request: Submit, attempt: int, delivered: list[int]) -> Submit:
    return msgspec.structs.replace(request, attempt=attempt, generated_ids=list(delivered))


def test_any_course_of_events_keeps_every_promise() -> None:
    assert run_machine(EngineMachine, max_examples=300, num_steps=50) > 5000


def test_any_course_of_events_keeps_every_promise_while_the_engine_looks_ahead() -> None:
    num_behind = 0

    class Counted(AheadMachine):
        def teardown(self) -> None:
            nonlocal num_behind
            super().teardown()
            num_behind += self._ahead_runner.num_launched_behind

    assert run_machine(Counted, max_examples=200, num_steps=50) > 3000
    assert num_behind > 1000


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("machine", [EngineMachine, AheadMachine])
def test_any_course_of_a_hundred_thousand_steps_keeps_every_promise(machine: type[EngineMachine]) -> None:
    assert run_machine(machine, max_examples=1300, num_steps=100) >= 100_000
