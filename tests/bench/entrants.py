"""Start who takes part, let them take turns, and end them: first the engines alone, then the servers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from serving.contracts.presets import PRESETS
from tests.bench import http_load, processor
from tests.bench.contenders import HTTP_WORKLOADS, Contender
from tests.bench.offline import ContenderFailed, OfflineEngine
from tests.bench.places import Places
from tests.bench.rounds import Entrant, Findings, Say, take_turns
from tests.bench.servers import FootplateServer, Server, start_server

ENGINE_WORKLOADS = ("w1", "w2")
PRESETS_OF = {"w2": ["mixed"], "w3": ["mixed", "chat"], "w4": ["mixed"], "w5": ["chat", "bulk"]}
"""What Footplate is set to for a workload, in turn. Peers get the prompts and arrivals that the first one gets."""
_IDLE_SECONDS = 2.0
_PAUSE_SECONDS = 1.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is measured: each of `workloads` in `repeats` rounds; `quick` plays a few seconds of each."""

    workloads: Sequence[str]
    repeats: int
    quick: bool


def run_engines(plan: Plan, contenders: Sequence[Contender], places: Places, findings: Findings, say: Say) -> None:
    """W1 and W2 without HTTP."""
    workloads = [name for name in ENGINE_WORKLOADS if name in plan.workloads]
    with contextlib.ExitStack() as running:
        entrants = []
        for contender in contenders if workloads else ():
            if contender.offline is None:
                continue
            with _noting(contender.name, "engine", findings, say):
                say(f"starting {contender.name}'s engine")
                log = places.scratch / f"{contender.name}-engine.log"
                engine = OfflineEngine(contender.name, contender.offline(places), log=log)
                running.callback(engine.stop)
                engine.generate([[1000 + index] * 32 for index in range(4)], output_tokens=8)
                entrants.append(_engine_entrant(contender.name, engine, quick=plan.quick))
        take_turns(workloads, entrants, findings, repeats=plan.repeats, say=say)


def run_servers(plan: Plan, contenders: Sequence[Contender], places: Places, findings: Findings, say: Say) -> None:
    """W2 to W5 over HTTP. All servers are up all the time; only one is asked anything at a time."""
    workloads = [name for name in HTTP_WORKLOADS if name in plan.workloads]
    with contextlib.ExitStack() as running:
        servers: list[tuple[Contender, Server]] = []
        for contender in contenders if workloads else ():
            if not set(workloads) & set(contender.http_workloads):
                continue
            with _noting(contender.name, "http", findings, say):
                say(f"starting {contender.name}'s server")
                server = start_server(contender, places)
                running.callback(server.stop)
                _warm_up(server)
                servers.append((contender, server))
        for contender, server in servers:
            findings.idle_core_ratio[contender.name] = _idle_core_ratio(server)
        entrants = [
            entrant
            for contender, server in servers
            for entrant in _server_entrants(contender, server, quick=plan.quick)
        ]
        take_turns(workloads, entrants, findings, repeats=plan.repeats, say=say)


def _engine_entrant(name: str, engine: OfflineEngine, *, quick: bool) -> Entrant:
    def measure(workload: str, number: int) -> Mapping[str, Any]:
        prompts, output_tokens = http_load.offline_prompts(workload, seed=1234 + number, quick=quick)
        return engine.generate(prompts, output_tokens=output_tokens)

    return Entrant(name=name, form="engine", workloads=ENGINE_WORKLOADS, measure=measure)


def seed_of(workload: str, number: int, preset: str) -> int:
    """The seed of a round's prompts: no server sees the same ones twice, which its prefix cache would make easy."""
    return 1000 * (number + 1) + 10 * int(workload[1:]) + sorted(PRESETS).index(preset)


def _server_entrants(contender: Contender, server: Server, *, quick: bool) -> list[Entrant]:
    """A peer plays all workloads as it is; ours once with each preset of the workload."""
    players = http_load.players(quick=quick)

    def entrant(label: str, workloads: Sequence[str], preset: str | None) -> Entrant:
        def measure(workload: str, number: int) -> Mapping[str, Any]:
            if isinstance(server, FootplateServer) and preset is not None:
                server.tune(preset)
            time.sleep(_PAUSE_SECONDS)
            seed = seed_of(workload, number, preset or PRESETS_OF[workload][0])
            return _played(server, players[workload], seed=seed)

        return Entrant(name=label, form="http", workloads=workloads, measure=measure)

    if not isinstance(server, FootplateServer):
        return [entrant(contender.name, contender.http_workloads, preset=None)]
    return [
        entrant(contender.name if preset == "mixed" else f"{contender.name}, preset {preset}", workloads, preset)
        for preset in PRESETS
        if (workloads := [name for name in contender.http_workloads if preset in PRESETS_OF[name]])
    ]


def _played(server: Server, player: http_load.Player, *, seed: int) -> dict[str, Any]:
    """Play, and add what processor time server and client used for a token."""
    roles = {**server.roles(), "client": [os.getpid()]}
    before = processor.used_by(roles)
    figures = asyncio.run(player(server.target, seed))
    if figures["num_failed"]:
        raise ContenderFailed(f"{figures['num_failed']} requests failed; the first: {figures['first_error']}")
    num_tokens = figures.get("num_output_tokens") or figures["output_tokens_per_second"] * figures["wall_seconds"]
    used = processor.us_per_token(before, processor.used_by(roles), num_tokens=num_tokens)
    return figures | {"core_us_per_token": used}


def _warm_up(server: Server) -> None:
    try:
        asyncio.run(http_load.warm_up(server.target))
    except RuntimeError as problem:
        raise ContenderFailed(str(problem)) from None


def _idle_core_ratio(server: Server) -> float:
    roles = server.roles()
    before = sum(processor.used_by(roles).values())
    time.sleep(_IDLE_SECONDS)
    return round((sum(processor.used_by(roles).values()) - before) / _IDLE_SECONDS, 3)


@contextlib.contextmanager
def _noting(name: str, form: str, findings: Findings, say: Say) -> Iterator[None]:
    """Write a failure to start down and go on without."""
    try:
        yield
    except ContenderFailed as problem:
        findings.note_problem(name, form, problem)
        say(f"{name} is left out: {problem}")
