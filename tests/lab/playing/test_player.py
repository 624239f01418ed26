"""What a load tester's clients do and see, against a server on loopback that answers as it is told."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from aiohttp import web

from serving.contracts.errors import InvalidValue
from serving.lab.playing.player import Player
from serving.lab.playing.prompts import PromptMaker
from serving.lab.playing.target import Target
from serving.lab.recording import Gauges, Recorder
from serving.lab.workloads.arrivals import ClosedLoop, Constant
from serving.lab.workloads.distributions import Fixed
from serving.lab.workloads.drawing import plan_requests
from serving.lab.workloads.workload import SharedPrefixes
from tests.lab.playing.answering import CLASS, Server, play, stream, workload


async def test_every_token_of_every_request_counts(server: Server) -> None:
    outcomes, recorder, played = await play(server, workload(ClosedLoop(2)), pool="p")
    assert [outcome.ending for outcome in outcomes] == ["finished"] * 6
    assert {outcome.num_output_tokens for outcome in outcomes} == {4}
    assert {outcome.queue_seconds for outcome in outcomes} == {0.03}
    assert server.most_in_flight == 2
    total = recorder.summary(wall_seconds=played.wall_seconds).total
    assert total.itl_ms is not None
    assert total.itl_ms.count == 6 * 3
    assert played.is_whole
    assert all(body["ignore_eos"] and body["pool"] == "p" and len(body["prompt"]) == 12 for body in server.bodies)


async def test_open_arrivals_never_wait_for_answers_and_their_wait_counts(server: Server) -> None:
    """A server that holds everybody until all are there: a closed loop would never get so far."""
    everybody = asyncio.Event()

    async def hold(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        if server.num_in_flight == 6:
            everybody.set()
        await everybody.wait()
        return await stream(request, body)

    server.answer = hold
    outcomes, _, _ = await play(server, workload(Constant(20)))
    assert server.most_in_flight == 6
    assert [outcome.ending for outcome in outcomes] == ["finished"] * 6
    # The first was due 0.25 s before the last, and all were answered then.
    waits = [outcome.ttft_seconds for outcome in outcomes]
    assert waits[0] is not None
    assert waits[-1] is not None
    assert waits[0] - waits[-1] > 0.2


async def test_refusals_failures_and_broken_streams_are_told_apart(server: Server) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        number = len(server.bodies)
        if number == 1:
            error = {"error": {"code": "queue_full", "message": "full"}}
            return web.json_response(error, status=429, headers={"Retry-After": "7"})
        if number == 2:
            return web.Response(status=500, text="<html>oops")
        if number == 3:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b'data: {"choices": [{"text": "a"}]}\n\n')
            return response
        if number == 4:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(b'data: {"error": {"code": "engine_failed", "message": "gone"}}\n\n')
            return response
        if number == 5:
            return web.Response(text="data: {not json\n\n")
        return await stream(request, body)

    server.answer = answer
    outcomes, recorder, _ = await play(server, workload(ClosedLoop(1)))
    assert [(outcome.ending, outcome.code) for outcome in outcomes] == [
        ("refused", "queue_full"),
        ("failed", "http_500"),
        ("failed", "broken"),
        ("failed", "engine_failed"),
        ("failed", "broken"),
        ("finished", ""),
    ]
    assert outcomes[0].retry_after_seconds == 7
    assert recorder.summary(wall_seconds=1).first_failure == "http_500: <html>oops"


@pytest.mark.parametrize(
    ("status", "text", "headers", "ending"),
    [
        (429, "slow down", {}, "refused"),
        (503, "<html>bad gateway", {}, "failed"),
        (503, "busy", {"Retry-After": "3"}, "refused"),
        (503, '{"error": {"code": "unavailable", "message": "no engine"}}', {}, "refused"),
        (408, '{"error": {"code": "queue_timeout", "message": "waited"}}', {}, "refused"),
        (502, '{"error": {"code": "bad", "message": "gone"}}', {"Retry-After": "3"}, "failed"),
    ],
)
async def test_a_server_that_is_gone_is_no_policy(
    server: Server, status: int, text: str, headers: dict[str, str], ending: str
) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return web.Response(status=status, text=text, headers=headers)

    server.answer = answer
    outcomes, _, _ = await play(server, workload(ClosedLoop(1), count=1))
    assert outcomes[0].ending == ending


async def test_a_client_that_goes_away_closes_its_connection(server: Server) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, body, gap=0.02)

    server.answer = answer
    leaving = msgspec.structs.replace(CLASS, cancelled_share=1.0, output_tokens=Fixed(400))
    outcomes, _, _ = await play(server, workload(ClosedLoop(1), count=2, request_class=leaving, seed=3))
    planned = list(plan_requests(workload(ClosedLoop(1), count=2, request_class=leaving, seed=3)))
    assert [outcome.ending for outcome in outcomes] == ["cancelled"] * 2
    assert [outcome.num_output_tokens for outcome in outcomes] == [
        max(1, each.cancel_after_tokens or 0) for each in planned
    ]
    await server.idle.wait()
    assert server.num_left == 2


async def test_a_request_that_takes_too_long_is_a_failure(server: Server) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, body, pause=30)

    server.answer = answer
    outcomes, _, _ = await play(server, workload(ClosedLoop(1), count=1), timeout_seconds=0.1)
    assert (outcomes[0].ending, outcomes[0].code) == ("failed", "timeout")


async def test_a_server_that_is_not_there_fails_every_request_and_ends_the_run(server: Server) -> None:
    outcomes, _, _ = await play(server, workload(ClosedLoop(2)), url="http://127.0.0.1:9")
    assert {outcome.code for outcome in outcomes} == {"broken"}
    assert len(outcomes) == 6


async def test_stopped_it_sends_nothing_more_and_says_so(server: Server) -> None:
    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, body, pause=30)

    server.answer = answer
    recorder = Recorder(workload(Constant(50), count=1000))
    player = Player(recorder.workload, Target(url=server.url, model="m"), recorder=recorder)
    playing = asyncio.create_task(player.play())
    await server.busy.wait()
    player.stop()
    played = await playing
    assert not played.is_whole
    assert recorder.outcomes == []
    assert "stopped before its end" in played.notes[0]
    assert len(server.bodies) < 900


async def test_tenants_send_with_their_own_keys_and_priorities(server: Server) -> None:
    of_tenant = msgspec.structs.replace(CLASS, tenant="acme", priority=-2)
    await play(server, workload(ClosedLoop(1), count=2, request_class=of_tenant), keys={"acme": "theirs"})
    assert server.keys == ["Bearer theirs"] * 2
    assert [body["priority"] for body in server.bodies] == [-2, -2]


async def test_answers_in_one_piece_have_an_end_and_no_first_token(server: Server) -> None:
    whole = msgspec.structs.replace(CLASS, streaming_share=0.0)
    outcomes, _, _ = await play(server, workload(ClosedLoop(1), count=2, request_class=whole))
    assert [(outcome.ending, outcome.ttft_seconds, outcome.num_output_tokens) for outcome in outcomes] == [
        ("finished", None, 4)
    ] * 2
    assert outcomes[0].e2e_seconds is not None


async def test_gauges_are_read_while_it_plays(server: Server) -> None:
    class Source:
        async def read(self) -> Gauges:
            return Gauges(num_running=3, host_memory_bytes=5)

    async def answer(request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, body, pause=0.7)

    server.answer = answer
    played = workload(ClosedLoop(1), count=2)
    recorder = Recorder(played)
    await Player(played, Target(url=server.url, model="m"), recorder=recorder, gauges=Source()).play()
    assert recorder.summary(wall_seconds=2).peak_host_memory_bytes == 5


def test_prompts_are_new_every_time_but_for_what_is_shared() -> None:
    shared = msgspec.structs.replace(CLASS, prefixes=SharedPrefixes(share=1.0, tokens=8, count=1))
    planned = list(plan_requests(workload(ClosedLoop(1), count=3, request_class=shared)))
    maker = PromptMaker(seed=1, prompts="tokens")
    prompts = [maker.prompt(each) for each in planned]
    assert {tuple(prompt[:8]) for prompt in prompts} == {tuple(prompts[0][:8])}
    assert len({tuple(prompt[8:]) for prompt in prompts}) == 3
    assert prompts == [PromptMaker(seed=1, prompts="tokens").prompt(each) for each in planned]
    assert prompts != [PromptMaker(seed=2, prompts="tokens").prompt(each) for each in planned]
    words = PromptMaker(seed=1, prompts="chat").prompt(planned[0])
    assert isinstance(words, str)
    assert len(words.split()) == 12


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"url": "ftp://x"}, "url"),
        ({"url": "http://"}, "url"),
        ({"url": "http://h:99999999"}, "url"),
        ({"model": ""}, "model"),
        ({"timeout_seconds": 0.0}, "timeout"),
        ({"timeout_seconds": float("nan")}, "timeout"),
    ],
)
def test_a_target_that_nobody_can_ask_is_refused_by_name(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidValue) as caught:
        Target(**{"url": "http://h", "model": "m", **changes}).check()
    assert caught.value.param == field
