"""What one websocket may cost: floods, bombs and clients that do not read."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Iterator
from typing import Any

import aiohttp
import pytest

from tests.config.raw_websocket import (
    CONTINUATION,
    MAX_MESSAGE_BYTES,
    MEGABYTE,
    PING,
    TEXT,
    assert_closed,
    frame,
    num_of,
    one_large_frame,
    opened,
    send_until_gone,
    upgrade,
)
from tests.config.toys import ToyWeb, toy_web, wait_for

pytestmark = [pytest.mark.stack, pytest.mark.timeout(60)]


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ToyWeb]:
    with toy_web(tmp_path_factory.mktemp("web")) as running:
        yield running


def messages_over_the_bound() -> Iterator[bytes]:
    yield frame(TEXT, bytes(MAX_MESSAGE_BYTES + 1))


def large_fragments() -> Iterator[bytes]:
    yield frame(TEXT, bytes(60_000), fin=False)
    yield from (frame(CONTINUATION, bytes(60_000), fin=False) for _ in range(2000))


def tiny_fragments() -> Iterator[bytes]:
    yield frame(TEXT, b"x", fin=False)
    yield from (frame(CONTINUATION, b"x", fin=False) * 10_000 for _ in range(1000))


def empty_fragments() -> Iterator[bytes]:
    yield frame(TEXT, b"x", fin=False)
    yield from (frame(CONTINUATION, fin=False) * 10_000 for _ in range(1000))


def pings() -> Iterator[bytes]:
    yield from (frame(PING, bytes(125)) * 1000 for _ in range(1000))


@pytest.mark.parametrize(
    ("flood", "code"),
    [
        (messages_over_the_bound, 1009),
        (one_large_frame, 1009),
        (large_fragments, 1009),
        (tiny_fragments, 1008),
        (empty_fragments, 1008),
        (pings, 1008),
    ],
)
def test_flood_is_cut_off_in_flat_memory(web: ToyWeb, flood: Any, code: int) -> None:
    before, peak = web.rss_bytes(), web.peak_bytes()
    noted = num_of(web, "hold: websocket.disconnect 1006")
    with opened(web, "/hold") as connection:
        send_until_gone(connection, flood())
    wait_for(lambda: num_of(web, "hold: websocket.disconnect 1006") == noted + 1)
    assert web.rss_bytes() - before < 8 * MEGABYTE
    assert web.peak_bytes() - peak < 8 * MEGABYTE


@pytest.mark.parametrize(
    ("pieces", "code"),
    [
        ([frame(TEXT, bytes(MAX_MESSAGE_BYTES + 1))], 1009),
        ([frame(TEXT, bytes(60_000), fin=False), frame(CONTINUATION, bytes(60_000))], 1009),
        ([frame(TEXT, fin=False), *[frame(CONTINUATION, fin=False)] * 100], 1008),
        ([frame(PING)] * 600, 1008),
        ([frame(TEXT, b"\xff\xff")], 1007),
        ([frame(TEXT, b"x").replace(b"\x81\x81", b"\x81\x01")], 1002),
    ],
    ids=["message", "fragments", "many fragments", "many frames", "no text", "unmasked"],
)
def test_who_breaks_a_rule_is_told_which(web: ToyWeb, pieces: list[bytes], code: int) -> None:
    with opened(web, "/hold") as connection:
        connection.sendall(b"".join(pieces))
        assert_closed(connection, code)


def test_messages_that_the_application_does_not_read_are_bounded(web: ToyWeb) -> None:
    with opened(web, "/deaf") as connection:
        connection.sendall(frame(TEXT, b"x") * 100)
        assert_closed(connection, 1008)
    wait_for(lambda: "deaf: 64 websocket.disconnect" in web.events())


def test_bomb_of_compression_is_cut_off_in_flat_memory(web: ToyWeb) -> None:
    squeezed = zlib.compressobj(9, zlib.DEFLATED, -12)
    bomb = (squeezed.compress(bytes(50 * MEGABYTE)) + squeezed.flush(zlib.Z_SYNC_FLUSH))[:-4][:MAX_MESSAGE_BYTES]
    before, peak = web.rss_bytes(), web.peak_bytes()
    with web.connect() as connection:
        connection.sendall(upgrade("/hold", b"Sec-WebSocket-Extensions: permessage-deflate; client_max_window_bits"))
        assert connection.recv(4096).startswith(b"HTTP/1.1 101 ")
        sent = bytearray(frame(TEXT, bomb))
        sent[0] |= 0x40
        connection.sendall(sent)
        assert_closed(connection, 1009)
    assert web.rss_bytes() - before < 8 * MEGABYTE
    assert web.peak_bytes() - peak < 8 * MEGABYTE


def test_client_that_stops_reading_cannot_hold_up_a_close(web: ToyWeb) -> None:
    before, noted = web.rss_bytes(), num_of(web, "rude: websocket.disconnect 1006")
    with contextlib.ExitStack() as stack:
        for _ in range(10):
            connection = stack.enter_context(opened(web, "/rude"))
            connection.sendall(frame(TEXT, b"hello"))
        wait_for(lambda: num_of(web, "rude: websocket.disconnect 1006") == noted + 10, seconds=8)
        assert web.rss_bytes() - before < 12 * MEGABYTE  # 20 MB were sent, and nothing of it taken


def test_what_waits_for_a_client_that_does_not_read_is_bounded(web: ToyWeb) -> None:
    before, noted = web.rss_bytes(), num_of(web, "flood: websocket.disconnect 1006")
    with opened(web, "/flood"):
        wait_for(lambda: num_of(web, "flood: websocket.disconnect 1006") == noted + 1, seconds=10)
    assert web.rss_bytes() - before < 12 * MEGABYTE


async def test_client_that_reads_may_be_sent_any_amount(web: ToyWeb) -> None:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{web.port}") as session, session.ws_connect("/large") as ws:
        for _ in range(10):
            await ws.send_str("please")
            assert len(await ws.receive_str()) == 300_000
