"""Anything in any order while guesses are made: everyone is told what would have been told without."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule

from tests.engine.core.harness import World
from tests.engine.core.machines import run_machine
from tests.engine.core.test_engine_machine import EngineMachine

pytestmark = pytest.mark.heavy


class GuessingMachine(EngineMachine):
    """Owns a world of so few words that the same pairs come again and again, and a guess is kept now and then."""

    num_words = 4

    def __init__(self) -> None:
        super().__init__()
        self.world = World(num_blocks=12, vocab_size=self.num_words, looks_ahead=self.looks_ahead)

    @rule(is_on=st.sampled_from(["on", "on", "off"]))
    def turn_guessing(self, is_on: str) -> None:
        self.world.retune(speculation=is_on)

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.02]))
    def let_steps_take_time(self, seconds: float) -> None:
        def take_time() -> None:
            self.world.now += seconds

        self.world.runner.before_each_run = take_time

    def teardown(self) -> None:
        super().teardown()
        counts = self.world.counts()
        assert 0 <= counts.accepted_tokens_total <= counts.drafted_tokens_total
        total[0] += counts.drafted_tokens_total
        total[1] += counts.accepted_tokens_total


class AheadGuessingMachine(GuessingMachine):
    """The same with a runner that is given plans ahead."""

    looks_ahead = True


total = [0, 0]
_MOST_RUNS = 8


@pytest.mark.parametrize("machine", [GuessingMachine, AheadGuessingMachine])
def test_any_course_of_events_keeps_every_promise(machine: type[GuessingMachine]) -> None:
    total[:] = 0, 0
    # How much is guessed is chance: courses are made up. More of them are run until it was enough to prove something.
    for _ in range(_MOST_RUNS):
        assert run_machine(machine, max_examples=150, num_steps=50) > 2500
        if total[0] > 300:
            break
    num_drafted, num_accepted = total
    assert num_drafted > 300
    assert num_accepted > num_drafted // 20
