"""From the transport's threads to the engine's."""

from __future__ import annotations

import dataclasses
import threading

from serving.contracts.ids import OwnerId
from serving.contracts.messages import Abort, Drain, Restart, Resume, Retune, Submit


@dataclasses.dataclass(frozen=True, slots=True)
class OwnerLost:
    """An owner's heart has stopped: what it owned is to be aborted."""

    owner_id: OwnerId


@dataclasses.dataclass(frozen=True, slots=True)
class OthersJoined:
    """The engine is no longer alone in its pool."""


@dataclasses.dataclass(frozen=True, slots=True)
class Leave:
    """Stop now: hand back what still runs."""


Command = Submit | Abort | Retune | Drain | Resume | Restart | OwnerLost | OthersJoined | Leave


class Mailbox:
    """Owns the commands that the engine has not taken yet; any thread puts, the engine's thread takes.

    Bounded by the door: what waits here was let in by it.
    """

    def __init__(self) -> None:
        self._commands: list[Command] = []
        self._num_unsettled = 0
        self._arrived = threading.Condition()

    def put(self, *commands: Command) -> None:
        """Hand over commands, in order, and wake the engine's thread."""
        with self._arrived:
            self._commands.extend(commands)
            self._arrived.notify()

    @property
    def num_submits(self) -> int:
        """Submits that no snapshot of the engine's counts yet: those here, and those taken since `settle`."""
        with self._arrived:
            return self._num_unsettled + sum(isinstance(command, Submit) for command in self._commands)

    def settle(self) -> None:
        """What was taken is in the engine's counts now."""
        with self._arrived:
            self._num_unsettled = 0

    def take(self, *, timeout_seconds: float | None) -> list[Command]:
        """All commands in order; waits for the first, at most `timeout_seconds` (0 = not at all, None = for ever)."""
        with self._arrived:
            if not self._commands and timeout_seconds != 0:
                self._arrived.wait(timeout_seconds)
            taken, self._commands = self._commands, []
            self._num_unsettled += sum(isinstance(command, Submit) for command in taken)
        return taken
