"""What one web process admits: `python -m tests.e2e.bench_web`. Prints figures; asserts nothing.

A real web process (HTTP, keys, door, gateway) over a real Valkey and SQLite, in front of a worker whose model is a stub
that ends every text at once. Clients in a process of their own keep 32 connections busy with completions of one token.
Requests a second, and the processor time that each costs the web process, without quotas and with a tenant's.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

import httpx
from redis import Redis

from serving.contracts.ids import PoolName
from serving.engine.models.importer import import_model
from serving.gateway.text.tokenizer import TextModel
from serving.worker.lifecycle import EngineWorker
from tests.e2e.stack import REPOSITORY, free_port, prepare_home
from tests.gateway.harness import ScriptedRunner
from tests.servers import running_valkey

_CONNECTIONS = 32
_SECONDS = 10.0
_QUOTAS = {"requests_per_minute": 10**7, "tokens_per_minute": 10**9, "tokens_per_day": 10**11}


class StubRunner(ScriptedRunner):
    """Ends every text with its first token, at once."""

    def _next(self, seed: int, index: int) -> int:
        return next(iter(self.eos_token_ids))


def main() -> None:
    """Measure, and print."""
    model = import_model(None, into=REPOSITORY / "var" / "test-models")
    with running_valkey() as redis_url, tempfile.TemporaryDirectory(prefix="footplate-web-") as name:
        home, port = Path(name), free_port()
        prepare_home(home, model)
        _serve_stub(redis_url, model)
        environment = {
            **os.environ,
            "FOOTPLATE_HOME": name,
            "FOOTPLATE_MODEL": str(model),
            "PORT": str(port),
            "REDIS_URL": redis_url,
        }
        web = subprocess.Popen([sys.executable, "manage.py", "runweb"], cwd=REPOSITORY, env=environment)
        try:
            key = json.loads((home / "first-run.json").read_text())["api_key"]
            _wait_until_ready(port)
            print(_measured("no quotas", web.pid, port=port, key=key, model=model.name))
            tenants = f"http://127.0.0.1:{port}/ops/v1/tenants/1"
            answer = httpx.patch(tenants, headers={"Authorization": f"Bearer {key}"}, json={"quotas": _QUOTAS})
            answer.raise_for_status()
            print(_measured("a tenant's quotas", web.pid, port=port, key=key, model=model.name))
        finally:
            web.terminate()
            web.wait()


def _serve_stub(redis_url: str, model: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_run_stub, args=(redis_url, model), daemon=True)
    process.start()


def _run_stub(redis_url: str, model: Path) -> None:
    eos_token_id = min(TextModel.load(model).eos_token_ids)
    runner = StubRunner(eos_token_id=eos_token_id, num_blocks=4096, step_seconds=0.001)
    worker = EngineWorker(
        runner,
        redis=lambda: Redis.from_url(redis_url),
        pool=PoolName("default"),
        model=model.name,
        device="cpu",
        dtype="none",
    )
    worker.run(drain_seconds=1.0)


def _wait_until_ready(port: int) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"http://127.0.0.1:{port}/readyz", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise SystemExit("the web process is not ready within a minute")


def _measured(what: str, pid: int, *, port: int, key: str, model: str) -> str:
    ours, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("spawn")
    clients = context.Process(target=_load, args=(theirs, port, key, model), daemon=True)
    clients.start()
    ours.recv()  # warm
    before, began_at = _processor_seconds(pid), time.monotonic()
    num_answers = ours.recv()
    took, used = time.monotonic() - began_at, _processor_seconds(pid) - before
    clients.join()
    return (
        f"{what}: {num_answers / took:.0f} requests/s, {used / num_answers * 1e6:.0f} µs of the web process's "
        f"processor time each ({used / took:.0%} of a core)"
    )


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _load(done: Connection, port: int, key: str, model: str) -> None:
    asyncio.run(_keep_busy(done, port, _request(key, model)))


def _request(key: str, model: str) -> bytes:
    body = json.dumps({"model": model, "prompt": "Once upon a time", "max_tokens": 1}).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


async def _keep_busy(done: Connection, port: int, request: bytes) -> None:
    connections = [await asyncio.open_connection("127.0.0.1", port) for _ in range(_CONNECTIONS)]
    await _ask_for(2.0, connections, request)
    done.send(None)
    done.send(await _ask_for(_SECONDS, connections, request))


async def _ask_for(
    seconds: float, connections: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]], request: bytes
) -> int:
    until = time.monotonic() + seconds

    async def keep_asking(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
        count = 0
        while time.monotonic() < until:
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise SystemExit(f"a request was refused: {head!r}")
            await reader.readexactly(_length_of(head))
            count += 1
        return count

    return sum(await asyncio.gather(*(keep_asking(*connection) for connection in connections)))


def _length_of(head: bytes) -> int:
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return int(lengths[0].split(b":")[1])


if __name__ == "__main__":
    main()
