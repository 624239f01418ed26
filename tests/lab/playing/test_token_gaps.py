"""Tokens and the time between them where a piece of an answer holds several."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from aiohttp import web

from serving.lab.playing.token_gaps import shared_out
from serving.lab.workloads.arrivals import ClosedLoop, Constant
from serving.lab.workloads.distributions import Fixed
from serving.lab.workloads.drawing import plan_requests
from tests.lab.playing.answering import CLASS, Server, in_pieces, play, workload


@pytest.mark.parametrize("tells", ["usage", "token_ids", "with the last", ""])
async def test_the_wait_for_a_piece_is_spread_over_its_tokens(server: Server, tells: str) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await in_pieces(request, [1, 4, 4, 4], tells=tells, gap=0.02)

    server.answer = answer
    outcomes, recorder, played = await play(server, workload(ClosedLoop(1), count=1))
    assert (outcomes[0].num_output_tokens, outcomes[0].ending) == (13, "finished")
    itl = recorder.summary(wall_seconds=played.wall_seconds).total.itl_ms
    assert itl is not None
    assert itl.count == 12
    assert outcomes[0].tpot_seconds is not None
    assert outcomes[0].longest_gap_seconds is not None
    assert itl.mean == pytest.approx(outcomes[0].tpot_seconds * 1e3, rel=0.01)
    assert itl.max == pytest.approx(outcomes[0].longest_gap_seconds * 1e3 / 4, rel=0.01)


async def test_tokens_of_the_first_piece_have_no_gap(server: Server) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await in_pieces(request, [5, 0, 2], tells="usage")

    server.answer = answer
    outcomes, recorder, _ = await play(server, workload(ClosedLoop(1), count=1))
    itl = recorder.summary(wall_seconds=1).total.itl_ms
    assert itl is not None
    assert itl.count == 2
    assert outcomes[0].num_output_tokens == 7


async def test_an_answer_in_a_single_piece_says_nothing_of_its_pace(server: Server) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await in_pieces(request, [9])

    server.answer = answer
    outcomes, recorder, _ = await play(server, workload(ClosedLoop(1), count=1))
    assert (outcomes[0].num_output_tokens, outcomes[0].tpot_seconds) == (9, None)
    assert recorder.summary(wall_seconds=1).total.itl_ms is None


@pytest.mark.parametrize("tells", ["usage", "token_ids"])
async def test_a_client_goes_away_after_so_many_tokens_not_pieces(server: Server, tells: str) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await in_pieces(request, [4] * 100, tells=tells, gap=0.01)

    server.answer = answer
    leaving = msgspec.structs.replace(CLASS, cancelled_share=1.0, output_tokens=Fixed(400))
    played = workload(ClosedLoop(1), count=1, request_class=leaving, seed=3)
    asked = next(iter(plan_requests(played))).cancel_after_tokens
    assert asked is not None
    outcomes, _, _ = await play(server, played)
    assert outcomes[0].ending == "cancelled"
    assert outcomes[0].num_output_tokens == -(-max(1, asked) // 4) * 4


@pytest.mark.parametrize(
    ("told", "num_tokens", "counts"),
    [
        ([None] * 3, 3, [1, 1, 1]),
        ([None] * 4, 13, [1, 4, 4, 4]),
        ([None] * 4, 9, [1, 2, 3, 3]),
        ([None] * 4, 2, [1, 1, 1, 1]),
        ([3, None, None], 9, [3, 3, 3]),
        ([None], 5, [1]),
        ([2, 3], 5, [2, 3]),
        ([], 0, []),
    ],
)
def test_tokens_are_shared_out_over_pieces(told: list[int | None], num_tokens: int, counts: list[int]) -> None:
    assert shared_out(told, num_tokens=num_tokens) == counts


async def test_how_late_requests_were_sent_is_told_of_open_arrivals(server: Server) -> None:
    _, recorder, played = await play(server, workload(Constant(50)))
    late = recorder.summary(wall_seconds=1).sent_late_p99_ms
    assert late is not None
    assert late >= 0
    assert f"was sent {late:,.1f} ms after it was due" in played.notes[-1]
    _, recorder, played = await play(server, workload(ClosedLoop(1)))
    assert recorder.summary(wall_seconds=1).sent_late_p99_ms is None
    assert played.notes == ()
