"""The engine's thread: take commands, step, hand events on."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from serving.contracts.ids import EngineId, OwnerId, PoolName
from serving.contracts.messages import (
    UNKNOWN_BUILD,
    Abort,
    Drain,
    EngineBuild,
    EngineSnapshot,
    Restart,
    Resume,
    Retune,
    Returned,
    Submit,
)
from serving.engine.engine import Engine
from serving.resources import resident_bytes
from serving.worker.mailbox import Command, Leave, Mailbox, OthersJoined, OwnerLost
from serving.worker.publisher import Publisher
from serving.worker.steps_publisher import StepsPublisher

_IDLE_SECONDS = 1.0
_REMIND_SECONDS = 5.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who an engine is, fixed at start."""

    engine_id: EngineId
    name: str
    pool: PoolName
    model: str
    device: str
    dtype: str
    backend: str = ""
    build: EngineBuild = UNKNOWN_BUILD


class EngineBroken(Exception):
    """The engine cannot compute any more; its process has to be started anew."""


class EngineHost:
    """Owns the Engine; `run` is its one thread. Snapshots may be asked for from any thread."""

    def __init__(
        self,
        engine: Engine,
        *,
        identity: Identity,
        mailbox: Mailbox,
        publisher: Publisher,
        steps: StepsPublisher,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._identity = identity
        self._mailbox = mailbox
        self._publisher = publisher
        self._steps = steps
        self._published_step = 0
        self._clock = clock
        self._started_at = clock()
        self._leaving = False
        self._leave_deadline: float | None = None
        self._reminded_at = self._started_at
        self._latest = self._take_snapshot()
        self._owners: frozenset[OwnerId] = frozenset()

    def snapshot(self) -> EngineSnapshot:
        """The state after the last step; its age-dependent parts are fresh."""
        return self._latest

    def owners(self) -> frozenset[OwnerId]:
        """Who owns the sequences here."""
        return self._owners

    def run(self, *, drain_seconds: float) -> None:
        """Step until told to leave, or until a restart has nothing left to wait for or took longer than
        `drain_seconds`.

        What still lives then is handed back to its owners. Raises `EngineBroken` where steps fail one after another.
        """
        while not self._leaving and not self._has_run_out() and not self._engine.is_broken:
            self._take_commands(drain_seconds)
            self._remind_owners()
            # A step may be long: who waits for a word on its Submit, and for credits, need not wait for its end.
            self._publisher.publish(self._engine.take_events())
            self._look()
            self._mailbox.settle()
            self._publisher.publish(self._engine.step())
            self._publish_steps()
            self._look()
        self._publisher.publish(self._engine.hand_back())
        self._look()
        if self._engine.is_broken:
            raise EngineBroken("the engine has failed several steps in a row and gives up")

    def return_unread(self) -> None:
        """Hand back the Submits that came in after the last step."""
        left = [command for command in self._mailbox.take(timeout_seconds=0) if isinstance(command, Submit)]
        self._publisher.publish([(submit.owner_id, Returned(submit.key, submit.attempt)) for submit in left])

    def _publish_steps(self) -> None:
        records = self._engine.records_since(self._published_step)
        if records:
            self._published_step = records[-1].step
            self._steps.publish(records)

    def _remind_owners(self) -> None:
        if self._clock() - self._reminded_at >= _REMIND_SECONDS:
            self._reminded_at = self._clock()
            self._engine.remind()

    def _look(self) -> None:
        self._latest = self._take_snapshot()
        self._owners = self._engine.owners

    def _take_commands(self, drain_seconds: float) -> None:
        for command in self._mailbox.take(timeout_seconds=self._patience()):
            if isinstance(command, Restart) and self._leave_deadline is None:
                self._leave_deadline = self._clock() + drain_seconds
            self._apply(command)

    def _patience(self) -> float:
        """How long to wait for a command: not at all while there is work that may be done now."""
        wakeup = self._engine.next_wakeup()
        if wakeup is None:
            return _IDLE_SECONDS
        return min(_IDLE_SECONDS, max(0.0, wakeup - self._clock()))

    def _apply(self, command: Command) -> None:
        match command:
            case Submit():
                self._engine.submit(command)
            case Abort():
                self._engine.abort(command.key, attempt=command.attempt)
            case Retune():
                self._engine.retune(command.version, command.tunables, force=command.force)
            case Drain() | Restart():
                self._engine.drain()
            case Resume():
                if self._leave_deadline is None:
                    self._engine.resume()
            case OwnerLost():
                self._engine.abort_owner(command.owner_id)
            case OthersJoined():
                self._engine.share()
            case Leave():
                self._leaving = True

    def _has_run_out(self) -> bool:
        if self._leave_deadline is None:
            return False
        return not self._engine.has_work or self._clock() >= self._leave_deadline

    def _take_snapshot(self) -> EngineSnapshot:
        counts = self._engine.counts()
        leaves = self._leave_deadline is not None
        if leaves:
            counts = dataclasses.replace(counts, state="draining")
        identity = self._identity
        return EngineSnapshot(
            engine_id=identity.engine_id,
            name=identity.name,
            pool=identity.pool,
            model=identity.model,
            device=identity.device,
            dtype=identity.dtype,
            backend=identity.backend,
            build=identity.build,
            rss_bytes=resident_bytes(),
            uptime_seconds=self._clock() - self._started_at,
            leaves=leaves,
            **dataclasses.asdict(counts),
        )
