"""How long a run counts."""

from __future__ import annotations

import msgspec

from serving.lab.workloads.arrivals import Constant
from tests.lab.playing.answering import Server, play, workload


async def test_a_run_at_whose_end_nobody_came_counts_to_the_end_of_its_duration(server: Server) -> None:
    """As a simulated one does: throughput is of the whole time."""
    seldom = msgspec.structs.replace(workload(Constant(0.01)), duration_seconds=50.0, num_requests=None)
    outcomes, _, played = await play(server, seldom)
    assert len(outcomes) == 1
    assert played.wall_seconds == 50


async def test_a_run_that_its_number_of_requests_ended_counts_to_its_last_answer(server: Server) -> None:
    few = msgspec.structs.replace(workload(Constant(50)), duration_seconds=50.0, num_requests=2)
    outcomes, _, played = await play(server, few)
    assert max(outcome.end_seconds for outcome in outcomes) <= played.wall_seconds < 50
