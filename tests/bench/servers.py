"""Servers that stay up for the whole run, each of which is measured in its turn."""

from __future__ import annotations

import os
import shutil
import signal
import time
from typing import Protocol

import httpx

from serving.config.processes import describe_exit, start_child
from serving.contracts.presets import preset_changes
from tests.bench.clients import Target
from tests.bench.contenders import KV_CACHE_MB, Contender
from tests.bench.offline import ContenderFailed, read_tail, stop_child
from tests.bench.places import Places
from tests.bench.processor import with_descendants
from tests.e2e.stack import Stack, children_of, command_of, free_port

READY_SECONDS = 900.0


class Server(Protocol):
    """What the rounds need of a server."""

    @property
    def target(self) -> Target:
        """Whom clients ask."""
        ...

    def roles(self) -> dict[str, list[int]]:
        """Its processes by what they do."""
        ...

    def stop(self) -> None:
        """End it and all that it started."""
        ...


class PeerServer:
    """Owns a peer's server process."""

    def __init__(self, contender: Contender, places: Places) -> None:
        """Start it and wait until it answers. Raises `ContenderFailed`."""
        assert contender.server is not None, f"{contender.name} has no server"
        port = free_port()
        command = contender.server(places, port)
        self._log = places.scratch / f"{contender.name}-server.log"
        with self._log.open("wb") as output:
            self._process = start_child(
                command.arguments, environment={**os.environ, **command.environment}, output=output
            )
        self.target = Target(url=f"http://127.0.0.1:{port}", key="none", model=places.model.name)
        try:
            self._wait_until_ready(contender.name)
        except BaseException:  # nothing that was started may stay, whatever ends the wait
            self.stop()
            raise

    def roles(self) -> dict[str, list[int]]:
        """All its processes are one role."""
        return {"server": with_descendants(self._process.pid)}

    def stop(self) -> None:
        """End it and all that it started."""
        stop_child(self._process, signal.SIGTERM)

    def _wait_until_ready(self, name: str) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            status = self._process.poll()
            if status is not None:
                raise ContenderFailed(f"{name}'s server ended with {describe_exit(status)}: {read_tail(self._log)}")
            try:
                if httpx.get(f"{self.target.url}/health", timeout=5).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.5)
        raise ContenderFailed(f"{name}'s server is not ready after {READY_SECONDS:g} s: {read_tail(self._log)}")


class FootplateServer:
    """Owns a whole Footplate, as `make serve` starts it, and which preset it runs."""

    def __init__(self, contender: Contender, places: Places) -> None:
        """Start it over a folder of its own and wait until it is ready. Raises `ContenderFailed`."""
        home = places.scratch / f"{contender.name}-server"
        home.mkdir()
        if (built := places.home / "kernels").exists():
            shutil.copytree(built, home / "kernels")
        settings = {"FOOTPLATE_KV_CACHE_MB": str(KV_CACHE_MB), **contender.settings}
        self._stack = Stack.over(home, places.model, **settings)
        try:
            self._stack.start()
        except BaseException as problem:
            stop_child(self._stack.process, signal.SIGTERM)
            if not isinstance(problem, AssertionError):
                raise
            raise ContenderFailed(f"{contender.name} does not start: {str(problem).splitlines()[-1]}") from None
        self._preset = "mixed"
        self.target = Target(url=self._stack.url, key=self._stack.first_run["api_key"], model=places.model.name)

    def roles(self) -> dict[str, list[int]]:
        """Its processes by the command that each runs; what is small is one role."""
        assert self._stack.process is not None
        found: dict[str, list[int]] = {"web": [], "engine": [], "valkey": [], "others": []}
        for pid in children_of(self._stack.process.pid):
            found[_role_of(command_of(pid))] += with_descendants(pid)
        return found

    def tune(self, preset: str) -> None:
        """Change the tunables to a preset, live, and wait until the engine runs them."""
        if preset == self._preset:
            return
        self._stack.tune(**preset_changes(preset))
        self._stack.wait_for(lambda snapshot: snapshot["applied_by"] == snapshot["num_engines"])
        self._preset = preset

    def stop(self) -> None:
        """Drain and end it."""
        self._stack.stop()


def start_server(contender: Contender, places: Places) -> Server:
    """Start a contender's server; it is ready afterwards. Raises `ContenderFailed`."""
    return FootplateServer(contender, places) if contender.server is None else PeerServer(contender, places)


def _role_of(command: str) -> str:
    names = {"runweb": "web", "runengine": "engine", "valkey": "valkey"}
    return next((role for name, role in names.items() if name in command), "others")
