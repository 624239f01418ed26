"""How long a request took, told where it is asked for."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from serving.contracts.messages import EngineTimings
from serving.gateway.generation import timings_together
from tests.api.conftest import MODEL, ScriptedGateway
from tests.api.test_answers import CHAT, COMPLETION, events_of

TIMINGS = EngineTimings(
    queue_seconds=0.25, prefill_seconds=0.5, decode_seconds=1.0004, num_preemptions=2, num_cached_tokens=1
)
TOLD = {"queue_ms": 250.0, "prefill_ms": 500.0, "decode_ms": 1000.4, "num_cached_tokens": 1, "num_preemptions": 2}


@pytest.fixture
def gateway(gateway: ScriptedGateway, monkeypatch: pytest.MonkeyPatch) -> ScriptedGateway:
    """One whose engine tells its times."""
    play = gateway.play

    def play_and_tell(index: int) -> None:
        play(index)
        gateway.streams[index].note_timings(TIMINGS)

    monkeypatch.setattr(gateway, "play", play_and_tell)
    return gateway


@pytest.mark.parametrize(("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)])
async def test_whole_answers_and_the_last_chunk_tell_them_where_asked(
    client: httpx.AsyncClient, gateway: ScriptedGateway, path: str, body: dict[str, Any]
) -> None:
    assert (await client.post(path, json={**body, "timings": True})).json()["timings"] == TOLD
    *chunks, last = events_of(await client.post(path, json={**body, "timings": True, "stream": True}))
    assert last["choices"] == []
    assert last["timings"] == TOLD
    assert last["usage"]["completion_tokens"] == 2
    assert all(chunk["usage"] is None and "timings" not in chunk for chunk in chunks)


@pytest.mark.parametrize("fields", [{}, {"timings": None}, {"timings": False}])
async def test_nobody_else_is_told_of_them(
    client: httpx.AsyncClient, gateway: ScriptedGateway, fields: dict[str, Any]
) -> None:
    assert "timings" not in (await client.post("/v1/completions", json={**COMPLETION, **fields})).json()
    body = {**COMPLETION, **fields, "stream": True, "stream_options": {"include_usage": True}}
    chunks = events_of(await client.post("/v1/completions", json=body))
    assert all("timings" not in chunk for chunk in chunks)
    chunks = events_of(await client.post("/v1/completions", json={**COMPLETION, **fields, "stream": True}))
    assert all("usage" not in chunk for chunk in chunks)


async def test_several_prompts_are_told_of_as_one_request(client: httpx.AsyncClient, gateway: ScriptedGateway) -> None:
    body = {"model": MODEL, "prompt": ["a", "b"], "timings": True}
    told = (await client.post("/v1/completions", json=body)).json()["timings"]
    assert told == {**TOLD, "num_cached_tokens": 2, "num_preemptions": 4}


def test_request_waits_for_its_first_sequence_and_lasts_as_long_as_its_slowest() -> None:
    other = EngineTimings(queue_seconds=2.0, prefill_seconds=0.1, decode_seconds=3.0, num_preemptions=1)
    assert timings_together([TIMINGS, other]) == EngineTimings(
        queue_seconds=0.25, prefill_seconds=0.5, decode_seconds=3.0, num_preemptions=3, num_cached_tokens=1
    )
    assert timings_together([]) is None
