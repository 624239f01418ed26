"""What the Lab's benches measure: the whole product, or, for a dry run, the simulator itself."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any, Final, Protocol

import msgspec
from redis import Redis

from serving.config.env import embedded_socket
from serving.contracts import keys
from serving.contracts.errors import InvalidValue
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.steps import decode_steps
from serving.contracts.tunables import Tunables
from serving.lab.costs.default import DEFAULT_COST, DEFAULT_ENVELOPE
from serving.lab.costs.envelope import Envelope
from serving.lab.costs.fitting import fit_cost, samples_of
from serving.lab.costs.model import CostModel
from serving.lab.playing.player import Player
from serving.lab.playing.target import Target
from serving.lab.recording import Recorder
from serving.lab.simulator.simulation import simulate
from serving.lab.summaries import RunSummary
from serving.lab.workloads.workload import Workload
from tests.e2e.stack import REPOSITORY, Stack

MODEL: Final = "SmolLM2-135M-Instruct"
_DRY_SLOWNESS = 1.03


@dataclasses.dataclass(frozen=True)
class Model:
    """What the simulator goes by."""

    cost: CostModel
    envelope: Envelope

    def play(self, workload: Workload, tunables: Tunables) -> RunSummary:
        """In virtual time."""
        return simulate(workload, tunables=tunables, envelope=self.envelope, cost=self.cost).summary


class Rig(Protocol):
    """What is measured."""

    def tune(self, changes: Mapping[str, Any]) -> Tunables:
        """Put the defaults with these changes in force; all values."""
        ...

    def play(self, workload: Workload) -> RunSummary:
        """Play it to its end."""
        ...

    def fit(self) -> tuple[CostModel, Envelope]:
        """Fit what the steps so far cost."""
        ...

    def refit(self, cost: CostModel) -> CostModel | None:
        """Fit what the steps of the latest play cost, the rest as in `cost`; None where they are too few."""
        ...


class StackRig:
    """The whole product."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._target = Target(url=stack.url, model=MODEL, key=stack.first_run["api_key"], pool="default")
        self._in_force = Tunables().as_dict()
        self._played_at = time.time()
        self._redis_url = stack.environment.get("REDIS_URL") or f"unix://{embedded_socket(stack.home)}"

    def tune(self, changes: Mapping[str, Any]) -> Tunables:
        """Through the API, as any client does."""
        wanted = Tunables().changed(dict(changes))
        differing = {name: value for name, value in wanted.as_dict().items() if self._in_force[name] != value}
        if differing:
            version = self._stack.tune(**differing)["version"]
            self._stack.wait_for(lambda seen: all(each["tunables_version"] == version for each in seen["engines"]))
        self._in_force = wanted.as_dict()
        return wanted

    def play(self, workload: Workload) -> RunSummary:
        """By the load tester, in this process."""
        self._stack.wait_until_idle()
        recorder = Recorder(workload)
        self._played_at = time.time()
        played = asyncio.run(Player(workload, self._target, recorder=recorder).play())
        return recorder.summary(wall_seconds=played.wall_seconds, notes=played.notes)

    def fit(self) -> tuple[CostModel, Envelope]:
        """By `manage.py fitcost`."""
        self._stack.wait_until_settled()
        printed = subprocess.run(
            [sys.executable, "manage.py", "fitcost", "--json"],
            cwd=REPOSITORY,
            env=self._stack.environment,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        content = json.loads(printed)
        return msgspec.convert(content["cost"], CostModel), msgspec.convert(content["envelope"], Envelope)

    def refit(self, cost: CostModel) -> CostModel | None:
        """From the records that the engines publish."""
        self._stack.wait_until_settled()
        with Redis.from_url(self._redis_url) as redis:
            engines = redis.zrange(keys.engines(PoolName("default")), 0, -1)
            entries = [entry for each in engines for entry in redis.xrange(keys.steps(EngineId(each.decode())))]
        rows = [row for _, fields in entries for row in decode_steps(fields[keys.FIELD]).rows]
        samples = samples_of([row for row in rows if row.unix_seconds >= self._played_at])
        try:
            return fit_cost(samples, request_seconds=cost.request_seconds)
        except InvalidValue:
            return None


class DryRig:
    """No product at all: what is measured is the simulator, with slower steps."""

    def __init__(self, slowness: float = _DRY_SLOWNESS) -> None:
        self._tunables = Tunables()
        self._model = Model(slowed(DEFAULT_COST, slowness), DEFAULT_ENVELOPE)

    def tune(self, changes: Mapping[str, Any]) -> Tunables:
        """Remember them."""
        self._tunables = Tunables().changed(dict(changes))
        return self._tunables

    def play(self, workload: Workload) -> RunSummary:
        """In virtual time."""
        return self._model.play(workload, self._tunables)

    def fit(self) -> tuple[CostModel, Envelope]:
        """The default cost, to which nothing was fitted."""
        return DEFAULT_COST, DEFAULT_ENVELOPE

    def refit(self, cost: CostModel) -> CostModel | None:
        """What it plays with, the rest as in `cost`."""
        return msgspec.structs.replace(self._model.cost, request_seconds=cost.request_seconds)


def slowed(cost: CostModel, factor: float) -> CostModel:
    """Each step takes so many times as long."""
    names = ("step", "prefill_token", "prefill_position", "decoding", "context_token")
    return msgspec.structs.replace(
        cost, **{f"{name}_seconds": getattr(cost, f"{name}_seconds") * factor for name in names}
    )
