"""What a comparison of the three ways of batching came to."""

from __future__ import annotations

import msgspec

from serving.lab.experiments.three_ways_figures import Way
from serving.lab.experiments.three_ways_plan import WayName


class ThreeWaysResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a comparison came to. `order` is that of the runs, `conclusions` say in words what each way costs."""

    pool: str
    workload: str
    is_simulated: bool
    ways: tuple[Way, ...]
    order: tuple[tuple[WayName, ...], ...]
    conclusions: tuple[str, ...]
    notes: tuple[str, ...] = ()
