"""The whole product in front of an engine whose steps take as long as a cost model says, and compute nothing.

Door, gateway, queue, scheduler and step records are the real ones, time is real, and only the arithmetic is slept
through: what a simulation with the same costs differs by is then the simulator's fault, on a machine that others use
as well.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

from redis import Redis

from serving.contracts.ids import PoolName
from serving.engine.plan import StepPlan, StepResult
from serving.gateway.text.tokenizer import TextModel
from serving.lab.costs.default import DEFAULT_ENVELOPE
from serving.lab.costs.model import CostModel
from serving.lab.simulator.work import work_of
from serving.worker.lifecycle import EngineWorker
from tests.e2e.stack import REPOSITORY, Stack, prepare_home
from tests.gateway.harness import ScriptedRunner
from tests.servers import running_valkey

_STOP_SECONDS = 20.0


class PacedRunner(ScriptedRunner):
    """Answers every request with one and the same token; a step takes what `cost` says."""

    block_size = DEFAULT_ENVELOPE.block_size
    max_model_len = DEFAULT_ENVELOPE.max_model_len

    def __init__(self, cost: CostModel, *, token_id: int, eos_token_id: int) -> None:
        super().__init__(eos_token_id=eos_token_id, num_blocks=DEFAULT_ENVELOPE.num_blocks, step_seconds=0.0)
        self._cost = cost
        self._token_id = token_id

    def run(self, plan: StepPlan) -> StepResult:
        """Sleep until the step is over."""
        ends_at = time.perf_counter() + self._cost.seconds(work_of(plan))
        result = super().run(plan)
        time.sleep(max(0.0, ends_at - time.perf_counter()))
        return result

    def _next(self, seed: int, index: int) -> int:
        return self._token_id


class PacedStack(Stack):
    """A stack whose one engine is paced. Stop it with `stop`, as any."""

    @classmethod
    def paced(cls, home: Path, model: Path, cost: CostModel) -> PacedStack:
        """Over an empty folder, with all its processes running."""
        stack = cls.over(home, model)
        prepare_home(home, model)
        stack._valkey = running_valkey()
        stack.environment = stack.environment | {"REDIS_URL": stack._valkey.__enter__()}
        stack._start_all(model, cost)
        stack.wait_until_ready()
        return stack

    def _start_all(self, model: Path, cost: CostModel) -> None:
        context = multiprocessing.get_context("spawn")
        arguments = (self.environment["REDIS_URL"], model, cost)
        self._engine: BaseProcess = context.Process(target=_run_engine, args=arguments, daemon=True)
        self._engine.start()
        output = (self.home / "serve-output.txt").open("wb")
        with output:
            self.process, *self._others = (
                subprocess.Popen(
                    [sys.executable, "manage.py", *command],
                    cwd=REPOSITORY,
                    env=self.environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
                for command in (["runweb"], ["runjobs"], ["runjobs", "--queue", "lab"])
            )

    def stop(self, number: int = signal.SIGTERM, *, timeout_seconds: float = _STOP_SECONDS) -> int:
        """End all processes; the status is the web process's."""
        assert self.process is not None, "what is stopped was started"
        for process in (*self._others, self.process):
            process.send_signal(number)
        status = self.process.wait(timeout_seconds)
        for process in self._others:
            process.wait(timeout_seconds)
        self._engine.terminate()
        self._engine.join(timeout_seconds)
        self._valkey.__exit__(None, None, None)
        return status


def _run_engine(redis_url: str, model: Path, cost: CostModel) -> None:
    text_model = TextModel.load(model)
    token_id, *_ = text_model.encode(" time", add_special_tokens=False)
    # It sleeps to the end of a step, and must then be there.
    if os.geteuid() == 0:
        os.nice(-10)
    worker = EngineWorker(
        PacedRunner(cost, token_id=token_id, eos_token_id=min(text_model.eos_token_ids)),
        redis=lambda: Redis.from_url(redis_url),
        pool=PoolName("default"),
        model=model.name,
        device="cpu",
        dtype="none",
    )
    worker.run(drain_seconds=1.0)
