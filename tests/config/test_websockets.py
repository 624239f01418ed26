"""Websockets behind the real web server, over real sockets with toy applications behind."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import struct
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.config.raw_websocket import (
    CLOSE,
    MAX_MESSAGE_BYTES,
    MEGABYTE,
    TEXT,
    assert_closed,
    frame,
    num_of,
    one_large_frame,
    opened,
    read_until_gone,
    send_until_gone,
    upgrade,
)
from tests.config.toys import ToyWeb, read_answer, toy_web, wait_for

pytestmark = [pytest.mark.stack, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyWeb]:
    with toy_web(tmp_path_factory.mktemp("web")) as running:
        yield running


@pytest.fixture
async def session(web: ToyWeb) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{web.port}") as session:
        yield session


async def test_messages_of_both_kinds_go_both_ways(session: aiohttp.ClientSession, web: ToyWeb) -> None:
    before = num_of(web, "echo: websocket.disconnect 1000")
    async with session.ws_connect("/echo") as ws:
        await ws.send_str("grüß dich")
        assert await ws.receive_str() == "grüß dich"
        await ws.send_bytes(b"\0\1")
        assert await ws.receive_bytes() == b"\0\1"
        await ws.send_str("x" * MAX_MESSAGE_BYTES)
        assert len(await ws.receive_str()) == MAX_MESSAGE_BYTES
    wait_for(lambda: num_of(web, "echo: websocket.disconnect 1000") == before + 1)


async def test_what_the_server_sends_may_be_larger_than_what_it_takes(session: aiohttp.ClientSession) -> None:
    async with session.ws_connect("/large") as ws:
        await ws.send_str("please")
        assert len(await ws.receive_str()) == 300_000


async def test_messages_are_compressed_for_clients_that_offer_it(session: aiohttp.ClientSession) -> None:
    async with session.ws_connect("/echo", compress=15) as ws:
        assert ws.compress
        for _ in range(3):
            await ws.send_str("y" * 10_000)
            assert await ws.receive_str() == "y" * 10_000


@pytest.mark.parametrize(
    ("offer", "accepted"),
    [
        (b"permessage-deflate; client_max_window_bits", b"permessage-deflate; client_max_window_bits=12"),
        (b"permessage-deflate; server_max_window_bits=10", b"permessage-deflate; server_max_window_bits=10"),
        (b"permessage-deflate; server_no_context_takeover", b"permessage-deflate; server_no_context_takeover"),
        (b"permessage-bzip2", None),
    ],
)
def test_compression_is_agreed_on_within_bounds(web: ToyWeb, offer: bytes, accepted: bytes | None) -> None:
    with web.connect() as connection:
        connection.sendall(upgrade("/hold", b"Sec-WebSocket-Extensions: " + offer))
        head = connection.recv(4096)
    assert head.startswith(b"HTTP/1.1 101 ")
    extensions = [line for line in head.split(b"\r\n") if line.startswith(b"Sec-WebSocket-Extensions")]
    assert extensions == ([] if accepted is None else [b"Sec-WebSocket-Extensions: " + accepted])


async def test_silent_websocket_outlives_the_bounds_on_http(session: aiohttp.ClientSession) -> None:
    async with session.ws_connect("/echo") as ws:
        heard = asyncio.ensure_future(ws.receive_str())
        await asyncio.sleep(7)  # HTTP's bounds are 2 s to read a request and 3 s of silence
        assert not heard.done()
        await ws.send_str("still here")
        assert await heard == "still here"


@pytest.mark.parametrize(
    ("head", "status", "code"),
    [
        (b"X-Large: " + b"y" * MEGABYTE, 431, "request_header_too_large"),
        (b"\r\n".join(b"X-%d: y" % number for number in range(200)), 431, "request_header_too_large"),
        (b"no colon", 400, "bad_request"),
        (b"Content-Length: 200000000", 413, "request_too_large"),
    ],
    ids=["large head", "many headers", "malformed head", "large body"],
)
def test_bounds_on_http_hold_for_the_handshake(web: ToyWeb, head: bytes, status: int, code: str) -> None:
    answered, _, body = web.exchange(upgrade("/echo", head))
    assert (answered, json.loads(body)["error"]["code"]) == (status, code)


@pytest.mark.parametrize(
    "start",
    [
        upgrade("/echo").replace(b"Sec-WebSocket-Key", b"X-No-Key"),
        upgrade("/echo").replace(b"Version: 13", b"Version: 99"),
        upgrade("/echo", b"Origin: null"),
        upgrade("/echo", b"Sec-WebSocket-Extensions: permessage-deflate; server_max_window_bits=99"),
    ],
    ids=["no key", "unknown version", "null origin", "impossible offer"],
)
def test_handshake_that_is_none_is_refused_in_the_shape_of_errors(web: ToyWeb, start: bytes) -> None:
    status, headers, body = web.exchange(start)
    assert status == 400
    assert headers["content-type"] == "application/json"
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


def test_handshake_that_trickles_in_is_refused(web: ToyWeb) -> None:
    with web.connect() as connection:
        connection.sendall(upgrade("/echo")[:-2])
        assert read_answer(connection)[0] == 408


@pytest.mark.parametrize(
    ("path", "status"), [("/refuse", 403), ("/undecided", 403), ("/vanish-early", 403), ("/fail-early", 500)]
)
def test_handshake_that_the_application_does_not_accept_is_refused(web: ToyWeb, path: str, status: int) -> None:
    answered, _, body = web.exchange(upgrade(path))
    assert answered == status
    assert b"secret" not in body
    if path == "/undecided":
        wait_for(lambda: "undecided: websocket.disconnect" in web.events())


def test_who_speaks_before_the_handshake_is_answered_is_cut_off(web: ToyWeb) -> None:
    with web.connect() as connection:
        connection.sendall(upgrade("/undecided"))
        time.sleep(0.2)
        send_until_gone(connection, iter([upgrade("/echo"), frame(TEXT, b"hello")]))
        assert read_until_gone(connection) == b""


def test_acceptance_that_makes_no_sense_cuts_the_connection_and_no_other(web: ToyWeb) -> None:
    with web.connect() as connection:
        connection.sendall(upgrade("/babel"))
        assert read_until_gone(connection) == b""
    wait_for(lambda: "babel: websocket.disconnect" in web.events())
    assert web.exchange(upgrade("/undecided"))[0] == 403  # that nothing happens is still noticed


def test_clients_have_no_say_in_the_root_path(web: ToyWeb) -> None:
    web.exchange(upgrade("/refuse", b"Daphne-Root-Path: /elsewhere"))
    web.exchange(b"GET /echo HTTP/1.1\r\nHost: x\r\nDaphne-Root-Path: /elsewhere\r\nConnection: close\r\n\r\n")
    assert "root path: /elsewhere" not in web.events()


@pytest.mark.parametrize("path", ["/fail", "/vanish"])
def test_application_that_ends_without_a_word_closes_its_websocket(web: ToyWeb, path: str) -> None:
    with opened(web, path) as connection:
        assert_closed(connection, 1011)


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def say_goodbye(connection: socket.socket) -> None:
    connection.sendall(frame(CLOSE, struct.pack("!H", 1001)))
    read_until_gone(connection)


def fall_silent(connection: socket.socket) -> None:
    """As behind a cable that was pulled: nothing is answered, and no end ever arrives."""
    assert connection.recv(2) == b"\x89\x0c"  # a ping, which stays unanswered
    read_until_gone(connection)


@pytest.mark.parametrize(
    ("leave", "code"), [(reset, 1006), (socket.socket.close, 1006), (say_goodbye, 1001), (fall_silent, 1006)]
)
def test_application_hears_of_a_client_that_goes(web: ToyWeb, leave: Any, code: int) -> None:
    event = f"hold: websocket.disconnect {code}"
    before = num_of(web, event)
    with opened(web, "/hold") as connection:
        leave(connection)
        wait_for(lambda: num_of(web, event) == before + 1, seconds=10)


async def test_application_closes_with_a_code_and_a_reason(session: aiohttp.ClientSession, web: ToyWeb) -> None:
    async with session.ws_connect("/rude", max_msg_size=3_000_000) as ws:
        await ws.send_str("hello")
        assert len(await ws.receive_str()) == 2_000_000
        message = await ws.receive()
        assert (message.type, message.data, message.extra) == (aiohttp.WSMsgType.CLOSE, 4408, "too slow")


def test_ordinary_ends_leave_no_word_in_the_log(tmp_path: Path) -> None:
    with toy_web(tmp_path) as web:
        for leave in (reset, socket.socket.close, say_goodbye):
            with opened(web, "/hold") as connection:
                leave(connection)
        for path in ("/refuse", "/undecided"):
            web.exchange(upgrade(path))
        web.exchange(upgrade("/echo").replace(b"Sec-WebSocket-Key", b"X-No-Key"))
        with opened(web, "/hold") as connection:
            send_until_gone(connection, one_large_frame())
        with opened(web, "/rude") as connection:
            connection.sendall(frame(TEXT, b"hello"))
            wait_for(lambda: "rude: websocket.disconnect 1006" in web.events())
        with opened(web, "/hold"):
            web.process.send_signal(signal.SIGTERM)
            assert web.process.wait(20) == 0
        assert web.log() == ""


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/leave", ["leave: websocket.disconnect 1000"]),
        ("/hold", ["hold: websocket.disconnect 1000"]),
        ("/stubborn", ["stubborn: cleaned up"]),
    ],
)
async def test_stop_closes_websockets_before_it_takes_anything_from_their_applications(
    tmp_path: Path, path: str, says: list[str]
) -> None:
    # The client answers every close with code 1000, which is what the application hears.
    with toy_web(tmp_path, drain_seconds=3600.0) as web:
        async with (
            aiohttp.ClientSession(f"http://127.0.0.1:{web.port}") as session,
            session.ws_connect(path) as ws,
        ):
            wait_for(lambda: f"{path[1:]}: accepted" in web.events())
            web.process.send_signal(signal.SIGTERM)
            message = await ws.receive(timeout=10)
            assert (message.type, message.data) == (aiohttp.WSMsgType.CLOSE, 1012)
        assert web.process.wait(20) == 0
        assert web.events() == [f"{path[1:]}: accepted", "drain", "end requests", *says, "close", "exit"]


def test_stop_waits_for_streams_and_not_for_websockets_whose_clients_are_silent(tmp_path: Path) -> None:
    with toy_web(tmp_path, drain_seconds=3600.0) as web, opened(web, "/hold"), web.connect() as connection:
        connection.sendall(b"GET /short HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in connection.recv(100)
        web.process.send_signal(signal.SIGTERM)
        assert b"whole" in read_until_gone(connection)
        assert web.process.wait(20) == 0
        assert web.events()[:3] == ["hold: accepted", "drain", "end requests"]
        assert web.events()[-3:] == ["hold: websocket.disconnect 1006", "close", "exit"]
