"""Several web processes and engines over one pool: a change made in one place holds in all."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from serving.config.processes import start_child
from tests.e2e.console import signed_in, watching
from tests.e2e.stack import REPOSITORY, Stack, free_port

pytestmark = [pytest.mark.stack, pytest.mark.model]


@contextlib.contextmanager
def another(stack: Stack, command: str, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """One more process beside those that `serve` runs, started as on a machine of its own."""
    log = Path(stack.home / f"another-{command}-{environment.get('PORT', '')}.log")
    with log.open("wb") as output:
        process = start_child(
            [sys.executable, "manage.py", command],
            environment=stack.environment | {"OMP_NUM_THREADS": "1"} | environment,
            output=output,
            folder=REPOSITORY,
        )
    try:
        yield process
    finally:
        os.kill(process.pid, signal.SIGTERM)
        process.wait(60)


async def test_a_change_in_the_console_reaches_every_process(own_stack: Callable[..., Stack]) -> None:
    stack = own_stack(FOOTPLATE_KV_CACHE_MB="64").start()
    ports = [free_port(), free_port()]
    urls = [stack.url, *(f"http://127.0.0.1:{port}" for port in ports)]
    with contextlib.ExitStack() as processes:
        for port in ports:
            processes.enter_context(another(stack, "runweb", PORT=str(port)))
        processes.enter_context(another(stack, "runengine"))
        for url in urls:
            wait_for(lambda url=url: answers(f"{url}/readyz"), "every web process answers")
        stack.wait_for(lambda s: s["num_engines"] == 2 and s["applied_by"] == 2, within_seconds=120)

        async with signed_in(stack, url=urls[1]) as client, watching(client) as console:
            before = stack.snapshot()["tunables_version"]
            stored = await console.ask(
                {"type": "change", "id": 1, "based_on": before, "changes": {"max_queue_tokens": 1}, "reason": "close"}
            )
            assert (stored["type"], stored["version"]["number"]) == ("stored", before + 1)
            await console.wait_until_applied(before + 1, num_engines=2)

        # The bound is kept by each web process itself, so that each must have heard of it.
        for url in urls:
            wait_for(lambda url=url: ask(stack, url).status_code == 429, "every web process keeps the new bound")
        for url in urls:
            for _ in range(50):
                assert ask(stack, url).status_code == 429
                assert applied(stack, url) == (before + 1, 2, 2)


def ask(stack: Stack, url: str) -> httpx.Response:
    body = {"model": "SmolLM2-135M-Instruct", "prompt": "One, two, three,", "max_tokens": 1}
    return httpx.post(f"{url}/v1/completions", headers=stack.headers, json=body, timeout=60)


def applied(stack: Stack, url: str) -> tuple[int, int, int]:
    """The version announced, how many engines run it, and how many there are, as one web process tells."""
    shown = httpx.get(f"{url}/ops/v1/pools/default/snapshot", headers=stack.headers, timeout=30).json()
    return shown["tunables_version"], shown["applied_by"], shown["num_engines"]


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def wait_for(condition: Callable[[], bool], what: str, *, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds:g} s: {what}"
        time.sleep(0.1)
