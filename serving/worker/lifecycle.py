"""An engine process from its start to its end."""

from __future__ import annotations

import logging
import signal
import socket
import uuid
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from redis import Redis

from serving.contracts import keys
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import (
    UNKNOWN_BUILD,
    AnnouncedTunables,
    EngineBuild,
    EngineSnapshot,
    Restart,
    decode_announced,
)
from serving.contracts.tunables import Tunables
from serving.engine.device import DeviceGauge
from serving.engine.engine import Engine
from serving.engine.plan import Runner
from serving.worker.gauge import SampledGauge
from serving.worker.heartbeat import Heartbeat
from serving.worker.host import EngineHost, Identity
from serving.worker.mailbox import Leave, Mailbox
from serving.worker.publisher import Publisher
from serving.worker.receiver import Receiver
from serving.worker.steps_publisher import StepsPublisher

if TYPE_CHECKING:
    from serving.engine.sampling.grammars import MaskProvider

logger = logging.getLogger(__name__)

_JOIN_SECONDS = 5.0


class EngineWorker:
    """Owns an engine and the threads around it: receiver, publishers, heartbeat, and the accelerator's gauge.

    `redis` makes a connection of its own for each thread. The engine is built on the pool's announced tunables. `gauge`
    reads the accelerator, on a thread of its own; on a CPU there is none to read, and no such thread. `masks` are the
    runner's: what comes is compiled by them before the engine's thread has it. `build` is what the engine tells of what
    it computes with.
    """

    def __init__(
        self,
        runner: Runner,
        *,
        redis: Callable[[], Redis],
        pool: PoolName,
        model: str,
        device: str,
        dtype: str,
        backend: str = "",
        build: EngineBuild = UNKNOWN_BUILD,
        gauge: DeviceGauge | None = None,
        masks: MaskProvider | None = None,
    ) -> None:
        self.engine_id = EngineId(f"{socket.gethostname()}-{uuid.uuid4().hex[:12]}")
        announced = _announced(redis(), pool)
        self._engine = Engine(runner, tunables=announced.tunables, tunables_version=announced.version)
        self._mailbox = Mailbox()
        self._publisher = Publisher(redis(), engine_id=self.engine_id)
        self._steps = StepsPublisher(redis(), engine_id=self.engine_id)
        self._host = EngineHost(
            self._engine,
            identity=Identity(
                engine_id=self.engine_id,
                name=f"{socket.gethostname()}:{pool}",
                pool=pool,
                model=model,
                device=device,
                dtype=dtype,
                backend=backend,
                build=build,
            ),
            mailbox=self._mailbox,
            publisher=self._publisher,
            steps=self._steps,
        )
        self._gauge = None if gauge is None or device == "cpu" else SampledGauge(gauge)
        self._heartbeat = Heartbeat(
            redis(),
            engine_id=self.engine_id,
            pool=pool,
            mailbox=self._mailbox,
            snapshot=self._host.snapshot,
            owners=self._host.owners,
            gauge=self._gauge,
        )
        self._receiver = Receiver(
            redis(),
            engine_id=self.engine_id,
            pool=pool,
            mailbox=self._mailbox,
            publisher=self._publisher,
            num_credits=self._credits,
            masks=masks,
        )

    def run(self, *, drain_seconds: float) -> None:
        """Serve on this thread until a drain has ended or `leave` was called; what still runs then is handed back."""
        self._publisher.start()
        self._steps.start()
        self._receiver.start()
        if self._gauge is not None:
            self._gauge.start()
        self._heartbeat.start()
        logger.info("engine %s serves", self.engine_id)
        try:
            self._host.run(drain_seconds=drain_seconds)
        finally:
            self._receiver.stop(timeout_seconds=_JOIN_SECONDS)
            self._host.return_unread()
            self._publisher.stop(timeout_seconds=_JOIN_SECONDS)
            self._steps.stop(timeout_seconds=_JOIN_SECONDS)
            self._heartbeat.stop(timeout_seconds=_JOIN_SECONDS)
            if self._gauge is not None:
                self._gauge.stop(timeout_seconds=_JOIN_SECONDS)
        logger.info("engine %s has left", self.engine_id)

    def drain(self) -> None:
        """Take nothing new, finish what runs, then end `run`, as `Restart` asks. From any thread, or a signal's
        handler."""
        self._receiver.stop_taking_work()
        self._mailbox.put(Restart())

    def leave(self) -> None:
        """End `run` now. From any thread, or a signal's handler."""
        self._mailbox.put(Leave())

    def snapshot(self) -> EngineSnapshot:
        """The engine's state after its last step. From any thread."""
        return self._host.snapshot()

    @property
    def num_other_engines(self) -> int:
        """Engines of the pool beside this one that take work, as last seen. From any thread."""
        return self._heartbeat.num_other_engines

    def _credits(self) -> int | None:
        """Sequences that this engine may still take; None, without bound, while it is alone in its pool."""
        if not self._heartbeat.has_beaten:
            return 0  # not before it knows whether it is alone
        if self._heartbeat.num_other_engines == 0:
            return None
        num_on_their_way = self._mailbox.num_submits  # first: what moves on meanwhile then counts twice, not never
        snapshot = self.snapshot()
        num_held = snapshot.num_running + snapshot.num_waiting + num_on_their_way
        return self._engine.tunables.max_running - num_held


def run_until_signalled(worker: EngineWorker, *, drain_seconds: float) -> None:
    """Run on the main thread: a first SIGTERM or SIGINT drains, a second one ends it at once."""
    signals = 0

    def obey(_signal: int, _frame: FrameType | None) -> None:
        nonlocal signals
        signals += 1
        if signals == 1:
            worker.drain()
        else:
            worker.leave()

    signal.signal(signal.SIGTERM, obey)
    signal.signal(signal.SIGINT, obey)
    worker.run(drain_seconds=drain_seconds)


def _announced(redis: Redis, pool: PoolName) -> AnnouncedTunables:
    """What the pool should run; the defaults as version 0 where nothing is announced, which the monitor then mends."""
    stored = redis.get(keys.announced_tunables(pool))
    return decode_announced(stored) if isinstance(stored, bytes) else AnnouncedTunables(0, Tunables())
