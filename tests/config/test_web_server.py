"""The web server's bounds and its stop, over real sockets with a toy application behind."""

from __future__ import annotations

import http.client
import json
import signal
import time
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from serving.config.web_server import AddressInUse, open_listener
from tests.config.toys import ToyWeb, read_answer, toy_web, wait_for

pytestmark = pytest.mark.stack

MEGABYTE = 1_000_000
MAX_BODY_BYTES = 2_097_152


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyWeb]:
    with toy_web(tmp_path_factory.mktemp("web")) as running:
        yield running


def chunked(total: int, *, piece: int = MEGABYTE) -> Iterator[bytes]:
    yield b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    for _ in range(total // piece):
        yield b"%x\r\n" % piece + bytes(piece) + b"\r\n"
    yield b"0\r\n\r\n"


def announced(total: int) -> Iterator[bytes]:
    yield b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % total
    for _ in range(total // MEGABYTE):
        yield bytes(MEGABYTE)


def assert_refused(answer: tuple[int, dict[str, str], bytes], status: int, code: str) -> None:
    assert answer[0] == status
    assert answer[1]["content-type"] == "application/json"
    assert answer[1]["connection"] == "close"
    error: dict[str, Any] = json.loads(answer[2])["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", None, code)


@pytest.mark.parametrize("megabytes", [3, 11, 200])
@pytest.mark.parametrize("body", [chunked, announced])
def test_a_body_over_the_bound_is_refused_in_flat_memory(
    web: ToyWeb, body: Callable[[int], Iterator[bytes]], megabytes: int
) -> None:
    before = web.rss_bytes()
    assert_refused(web.exchange(*body(megabytes * MEGABYTE)), 413, "request_too_large")
    assert web.rss_bytes() - before < 8 * MEGABYTE


def test_a_body_at_the_bound_arrives_whole(web: ToyWeb) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", web.port, timeout=20)
    for size in (0, 1, 65_536, MAX_BODY_BYTES):
        connection.request("POST", "/echo", body=bytes(size))
        response = connection.getresponse()
        assert json.loads(response.read()) == {"bytes": size}
    connection.close()


def test_an_announced_body_is_refused_before_it_is_sent(web: ToyWeb) -> None:
    with web.connect() as connection:
        connection.sendall(
            b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 200000000\r\nExpect: 100-continue\r\n\r\n"
        )
        assert_refused(read_answer(connection), 413, "request_too_large")


def test_a_client_that_asks_first_is_told_to_continue(web: ToyWeb) -> None:
    with web.connect() as connection:
        connection.sendall(b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 100 Continue\r\n")
        connection.sendall(b"hello")
        status, _, body = read_answer(connection)
    assert (status, json.loads(body)) == (200, {"bytes": 5})


@pytest.mark.parametrize(
    "head",
    [
        b"".join(b"X-%d: y\r\n" % number for number in range(10_000)),
        b"".join(b"X-%d: y\r\n" % number for number in range(101)),
        b"X-Large: " + b"y" * 10 * MEGABYTE + b"\r\n",
        b"Authorization: Bearer " + b"y" * MEGABYTE + b"\r\n",
        b"".join(b"X-%d: %s\r\n" % (number, b"y" * 1000) for number in range(20)),
    ],
    ids=["10,000 headers", "one header too many", "a header of 10 MB", "a key of 1 MB", "many of 1 KB"],
)
def test_a_head_over_the_bound_is_refused(web: ToyWeb, head: bytes) -> None:
    answer = web.exchange(b"GET /echo HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n")
    assert_refused(answer, 431, "request_header_too_large")


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"nonsense\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nnot a length\r\n",
    ],
    ids=["no request line", "negative length", "two lengths", "bad chunk"],
)
def test_what_is_no_http_is_refused(web: ToyWeb, request_bytes: bytes) -> None:
    assert_refused(web.exchange(request_bytes), 400, "bad_request")


@pytest.mark.parametrize(
    "start",
    [
        b"GET /echo HTTP/1.1\r\nX-Slow: ",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n",
    ],
    ids=["head", "body", "chunks"],
)
def test_a_request_that_trickles_in_is_refused(web: ToyWeb, start: bytes) -> None:
    with web.connect() as connection:
        connection.sendall(start)
        assert_refused(read_answer(connection), 408, "request_timeout")


def test_what_the_server_refuses_itself_is_told_to_the_application(tmp_path: Path) -> None:
    with toy_web(tmp_path) as web:
        web.exchange(*announced(3 * MEGABYTE))
        web.exchange(b"nonsense\r\n\r\n")
        web.exchange(b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n")
        assert web.events() == ["refused: request_too_large", "refused: bad_request"]


@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 405, 408, 409, 413, 415, 429, 500, 503])
def test_every_status_has_its_standard_phrase(web: ToyWeb, status: int) -> None:
    with web.connect() as connection:
        connection.sendall(b"GET /status/%d HTTP/1.1\r\nHost: x\r\n\r\n" % status)
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert (response.status, response.reason) == (status, HTTPStatus(status).phrase)


def test_a_head_that_is_refused_has_its_standard_phrase(web: ToyWeb) -> None:
    with web.connect() as connection:
        connection.sendall(b"GET /echo HTTP/1.1\r\nX-Large: " + b"y" * 20_000 + b"\r\n\r\n")
        response = http.client.HTTPResponse(connection)
        response.begin()
        assert (response.status, response.reason) == (431, "Request Header Fields Too Large")


def test_a_stream_may_last_longer_than_reading_a_request(web: ToyWeb) -> None:
    with web.connect() as connection:
        connection.sendall(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        received = b""
        while received.count(b"tick") < 30:  # 3 s; a request must have arrived after 2 s
            received += connection.recv(1000)
            assert b"408" not in received


def test_the_application_hears_of_a_client_that_leaves_its_stream(tmp_path: Path) -> None:
    with toy_web(tmp_path) as web:
        with web.connect() as connection:
            connection.sendall(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
            while b"tick" not in connection.recv(1000):
                pass
        wait_for(lambda: "stream: client gone" in web.events())


def test_the_application_hears_of_a_client_that_does_not_wait(web: ToyWeb) -> None:
    before = web.events().count("wait: http.disconnect")
    begun = web.events().count("wait: begun")
    with web.connect() as connection:
        connection.sendall(b"GET /wait HTTP/1.1\r\nHost: x\r\n\r\n")
        wait_for(lambda: web.events().count("wait: begun") == begun + 1)
    wait_for(lambda: web.events().count("wait: http.disconnect") == before + 1)


def test_a_failing_application_gives_an_error_that_tells_nothing(web: ToyWeb) -> None:
    status, body = web.get("/fail")
    assert status == 500
    assert json.loads(body)["error"]["type"] == "server_error"
    assert b"secret" not in body


def test_an_application_that_fails_late_cuts_its_connection_and_no_other(web: ToyWeb) -> None:
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        web.get("/fail-late")
    assert web.get("/echo")[0] == 200
    assert web.get("/fail")[0] == 500  # failures are still noticed


def test_answers_name_no_server_version(web: ToyWeb) -> None:
    _, headers, _ = web.exchange(b"GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    assert "server" not in headers


def test_drains_running_streams_and_refuses_new_requests(tmp_path: Path) -> None:
    with toy_web(tmp_path) as web, web.connect() as connection:
        connection.sendall(b"GET /short HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in connection.recv(100)
        web.process.send_signal(signal.SIGTERM)
        wait_for(lambda: "drain" in web.events())
        assert web.get("/echo")[0] == 503
        received = b""
        while piece := connection.recv(1000):
            received += piece
        assert b"whole" in received
        assert web.process.wait(20) == 0
        assert web.events() == ["drain", "end requests", "close", "exit"]


@pytest.mark.parametrize(("drain_seconds", "num_signals"), [(0.5, 1), (3600.0, 2)])
def test_streams_that_outlast_the_drain_are_ended_with_a_last_word(
    tmp_path: Path, drain_seconds: float, num_signals: int
) -> None:
    with toy_web(tmp_path, drain_seconds=drain_seconds) as web, web.connect() as connection:
        connection.sendall(b"GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in connection.recv(100)
        for _ in range(num_signals):
            web.process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
        received = b""
        while piece := connection.recv(1000):
            received += piece
        assert b"the end" in received
        assert web.process.wait(20) == 0
        assert web.events() == ["drain", "end requests", "stream: ended by the server", "close", "exit"]


def test_an_idle_server_stops_at_once_even_with_idle_connections(tmp_path: Path) -> None:
    with toy_web(tmp_path, drain_seconds=3600.0) as web, web.connect() as connection:
        connection.sendall(b"GET /echo HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b"200 OK" in connection.recv(1000)
        web.process.send_signal(signal.SIGINT)
        assert web.process.wait(20) == 0


def test_a_taken_port_is_one_clear_line() -> None:
    with open_listener("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(AddressInUse, match=f"^port {port} on 127.0.0.1 is taken; set PORT to another$"):
            open_listener("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_an_address_of_another_machine_is_one_clear_line(host: str) -> None:
    with pytest.raises(AddressInUse, match=host):
        open_listener(host, 0)
