"""A whole Footplate in processes of its own, started as a user starts it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx

REPOSITORY = Path(__file__).resolve().parent.parent.parent
KERNELS = REPOSITORY / "var" / "test-kernels"
"""Where the tests keep the engine's kernels, which every new home would compile anew."""
READY_SECONDS = 180.0
_FIRST_START = """
import django
django.setup()
from serving.config.bootstrap import collect_static_files, prepare_database
prepare_database(print, with_accounts=True)
collect_static_files()
"""


@dataclasses.dataclass
class Stack:
    """`manage.py serve` over a folder, and ways to reach it."""

    home: Path
    port: int
    environment: dict[str, str]
    process: subprocess.Popen[bytes] | None = None

    @classmethod
    def over(cls, home: Path, model: Path, **environment: str) -> Stack:
        port = free_port()
        KERNELS.mkdir(parents=True, exist_ok=True)
        if not (home / "kernels").exists():
            (home / "kernels").symlink_to(KERNELS)
        inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        own = {"FOOTPLATE_HOME": str(home), "FOOTPLATE_MODEL": str(model), "PORT": str(port)}
        return cls(home, port, inherited | own | {"FOOTPLATE_KV_CACHE_MB": "256"} | environment)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def first_run(self) -> dict[str, str]:
        return dict(json.loads((self.home / "first-run.json").read_text()))

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.first_run['api_key']}"}

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def start(self) -> Stack:
        with (self.home / "serve-output.txt").open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "manage.py", "serve"],
                cwd=REPOSITORY,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.wait_until_ready()
        return self

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            assert self.process is not None
            assert self.process.poll() is None, f"serve has ended:\n{self.output()}"
            try:
                answer = httpx.get(f"{self.url}/readyz", timeout=5)
                if answer.status_code == 200 and not answer.json()["reasons"]:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"not ready within {READY_SECONDS:g} s:\n{self.output()}\n{self.logs()}")

    def output(self) -> str:
        return (self.home / "serve-output.txt").read_text()

    def wait_for_output(self, text: str, *, within_seconds: float = 30) -> None:
        deadline = time.monotonic() + within_seconds
        while text not in self.output():
            assert time.monotonic() < deadline, f"{text!r} is not in:\n{self.output()}"
            time.sleep(0.05)

    def logs(self) -> str:
        return "\n".join(f"== {path.name}\n{path.read_text()[-4000:]}" for path in (self.home / "logs").glob("*.log"))

    def stop(self, number: int = signal.SIGTERM, *, timeout_seconds: float = 60) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout_seconds)

    def kill(self) -> None:
        """End it with all its processes and ask none of them, which takes no time."""
        if self.process is None or not self.is_running:
            return
        members = [self.process.pid, *descendants_of(self.process.pid)]
        self.process.kill()  # first, so that it starts none of the others again
        self.process.wait()
        for pid in members[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 30
        while left := [pid for pid in members if is_alive(pid)]:
            assert time.monotonic() < deadline, f"killed, and still there: {left}"
            time.sleep(0.02)

    def pids(self) -> dict[str, int]:
        """Ids of the children, by what they run."""
        assert self.process is not None
        return {command_of(pid): pid for pid in children_of(self.process.pid)}

    def pid_of(self, command: str) -> int:
        return next(pid for name, pid in self.pids().items() if command in name)

    def snapshot(self, pool: str = "default") -> dict[str, Any]:
        answer = httpx.get(f"{self.url}/ops/v1/pools/{pool}/snapshot", headers=self.headers, timeout=30)
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def tune(self, *, pool: str = "default", **changes: Any) -> dict[str, Any]:
        answer = httpx.patch(
            f"{self.url}/ops/v1/pools/{pool}/tunables",
            headers=self.headers,
            json={"changes": changes, "reason": "a test"},
            timeout=30,
        )
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def wait_for(self, condition: Any, *, within_seconds: float = 60, pool: str = "default") -> dict[str, Any]:
        """The first snapshot of the pool that meets `condition`."""
        deadline = time.monotonic() + within_seconds
        while not condition(snapshot := self.snapshot(pool)):
            assert time.monotonic() < deadline, f"never came true: {snapshot}"
            time.sleep(0.05)
        return snapshot

    def wait_until_idle(self, pool: str = "default") -> dict[str, Any]:
        return self.wait_for(
            lambda s: s["num_running"] == s["num_waiting"] == s["kv_blocks_used"] == s["permits_requests"] == 0,
            pool=pool,
        )

    def wait_until_settled(self, pool: str = "default") -> dict[str, Any]:
        """Idle, and in the books is all that was: web processes write them twice a second."""
        self.wait_until_idle(pool)
        time.sleep(1)
        return self.snapshot(pool)


def prepare_home(home: Path, model: Path) -> None:
    """Do to an empty folder what a first start does before it starts its processes, which is half of what it costs."""
    environment = Stack.over(home, model).environment | {"DJANGO_SETTINGS_MODULE": "serving.config.settings"}
    subprocess.run([sys.executable, "-c", _FIRST_START], cwd=REPOSITORY, env=environment, check=True)


def open_stream(stack: Stack, *, stream: bool = True, max_tokens: int = 4000) -> socket.socket:
    """A connection with a long request under way, as raw as they come."""
    body = json.dumps(
        {
            "model": "SmolLM2-135M-Instruct",
            "messages": [{"role": "user", "content": "Tell me a very long story."}],
            "max_tokens": max_tokens,
            "ignore_eos": True,
            "stream": stream,
        }
    ).encode()
    head = (
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Authorization: {stack.headers['Authorization']}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection = socket.create_connection(("127.0.0.1", stack.port), timeout=60)
    connection.sendall(head.encode() + body)
    return connection


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def children_of(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(child) for child in text.split()]


def descendants_of(pid: int) -> list[int]:
    """All processes that it started, and that they started."""
    return [each for child in children_of(pid) for each in (child, *descendants_of(child))]


def command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"
