"""What a comparison of the three ways of batching is to do, and in which order."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final, Literal

import msgspec

from serving.contracts.errors import InvalidValue
from serving.contracts.tunables import Tunables
from serving.lab.experiments.overload_plan import check_within
from serving.lab.workloads.checking import check_workload
from serving.lab.workloads.workload import Workload

WayName = Literal["static", "windowed", "continuous"]
WAYS: Final[tuple[WayName, ...]] = ("static", "windowed", "continuous")
MAX_REPEATS: Final = 10
MAX_SETTLE_SECONDS: Final = 300.0


class ThreeWaysPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The workload under each way, `repeats` times, each time with another seed that all three share. Batches of the
    static way form when the first has waited `static_window_ms`, or all places are filled; joins of the windowed way
    wait `window_ms` for company; those of the continuous way wait for nothing. `settle_seconds` pass after each change.
    """

    workload: Workload
    static_window_ms: float = 1000.0
    window_ms: float = 250.0
    repeats: int = 3
    settle_seconds: float = 5.0
    way: Literal["played", "simulated"] = "played"

    def check(self) -> None:
        """Raise `InvalidValue`, naming field, value and bound, for what cannot be played."""
        check_workload(self.workload)
        check_within("static_window_ms", self.static_window_ms, low=1, high=10_000)
        check_within("window_ms", self.window_ms, low=1, high=10_000)
        check_within("settle_seconds", self.settle_seconds, low=0, high=MAX_SETTLE_SECONDS)
        if isinstance(self.repeats, bool) or not 1 <= self.repeats <= MAX_REPEATS:
            raise InvalidValue("repeats", self.repeats, f"a whole number from 1 to {MAX_REPEATS}")

    def changes_of(self, way: WayName) -> dict[str, Any]:
        """The tunables that a way consists of."""
        if way == "static":
            return {"mode": "static", "batch_window_ms": float(self.static_window_ms)}
        window_ms = float(self.window_ms) if way == "windowed" else 0.0
        return {"mode": "continuous", "batch_window_ms": window_ms}

    def order(self) -> tuple[tuple[WayName, ...], ...]:
        """The ways in the order of each repeat: drawn by the workload's seed, and turned round every second time, so
        that a server that drifts evenly does so for all three alike (ABCCBA)."""
        ways = list(WAYS)
        random.Random(self.workload.seed).shuffle(ways)
        return tuple(tuple(ways) if number % 2 == 0 else tuple(reversed(ways)) for number in range(self.repeats))

    def check_against(self, tunables: Tunables) -> None:
        """Raise `InvalidValue` where a window is so long that the queue's own bound refuses who waits for company."""
        for name in ("static_window_ms", "window_ms"):
            if getattr(self, name) >= tunables.max_queue_wait_ms:
                bound = f"below the pool's max_queue_wait_ms, {tunables.max_queue_wait_ms:g}"
                raise InvalidValue(name, getattr(self, name), bound)


def decode_three_ways_plan(content: Mapping[str, Any]) -> ThreeWaysPlan:
    """A plan from what JSON holds; raises `InvalidValue` for what is none, or cannot be played."""
    try:
        plan = msgspec.convert(content, type=ThreeWaysPlan)
    except msgspec.ValidationError as error:
        raise InvalidValue("plan", "…", f"that of a comparison of three ways: {error}") from None
    plan.check()
    return plan
