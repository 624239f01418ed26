"""What `serve` starts for several pools, and when it says that all is up."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from serving.config.pools import PoolSettings
from serving.config.readiness import Readiness
from serving.config.stack import engine_child

NOWHERE = "http://127.0.0.1:1"


@contextlib.contextmanager
def answering(status: int, body: bytes) -> Iterator[str]:
    """The URL of a server that answers so."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/readyz" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def reasons(*given: str) -> bytes:
    return json.dumps({"status": "…", "reasons": given}).encode()


@pytest.mark.parametrize(
    ("status", "body", "is_ready"),
    [
        (200, reasons(), True),
        (200, reasons("pool bulk has no engine that is ready"), False),
        (503, reasons("Redis cannot be reached"), False),
        (200, b"", False),
        (200, b"<html>", False),
        (200, b"[]", False),
        (200, b"\xff", False),
    ],
)
def test_all_is_up_when_the_web_process_misses_nothing(status: int, body: bytes, is_ready: bool) -> None:
    with answering(status, body) as url:
        assert Readiness(url, complain=pytest.fail)() is is_ready


def test_nothing_is_up_where_nobody_listens() -> None:
    assert not Readiness(NOWHERE, complain=pytest.fail)()


def test_says_once_a_minute_what_is_missing() -> None:
    now, said = [0.0], list[str]()
    with answering(
        200, reasons("pool bulk has no engine that is ready", "pool big has no engine that is ready")
    ) as url:
        ready = Readiness(url, complain=said.append, clock=lambda: now[0])
        for second in range(0, 130, 10):
            now[0] = float(second)
            assert not ready()
    assert said == ["pool bulk has no engine that is ready; pool big has no engine that is ready"] * 2


def pool(name: str, **options: Any) -> PoolSettings:
    return PoolSettings(name=name, model=Path("/models/x"), **options)


def test_a_single_engine_has_all_cores_and_the_plain_name() -> None:
    spec = engine_child(pool("default"), all_pools=[pool("default")])
    assert spec.name == "engine"
    assert spec.command[-3:] == ("runengine", "--pool=default", "--engines-here=1")


def test_engines_of_several_pools_are_told_apart_and_share_the_cores() -> None:
    pools = [pool("chat"), pool("bulk", threads=3), pool("big", device="cuda")]
    specs = [engine_child(each, all_pools=pools) for each in pools]
    assert [spec.name for spec in specs] == ["engine-chat", "engine-bulk", "engine-big"]
    assert [spec.command[-2:] for spec in specs] == [
        (f"--pool={name}", "--engines-here=2") for name in ("chat", "bulk", "big")
    ]
    assert specs[1].environment["OMP_NUM_THREADS"] == "3"
