"""State machines run as tests, their steps counted."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test

_QUIET = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def run_machine(machine: type[RuleBasedStateMachine], *, max_examples: int, num_steps: int) -> int:
    """Run `max_examples` courses of `num_steps` rules each or a little fewer; how many rules were run in all."""
    total = 0

    class Counted(machine):  # type: ignore[valid-type, misc]
        def __init__(self) -> None:
            nonlocal total
            super().__init__()
            total -= 1  # invariants are checked before the first rule too

        @invariant(check_during_init=True)
        def count(self) -> None:
            nonlocal total
            total += 1

    chosen = settings(
        max_examples=max_examples, stateful_step_count=num_steps, deadline=None, suppress_health_check=_QUIET
    )
    run_state_machine_as_test(Counted, settings=chosen)  # type: ignore[no-untyped-call]
    return total
