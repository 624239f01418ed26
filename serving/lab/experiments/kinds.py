"""The kinds of experiments, each with who plays it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

from serving.lab.experiments.bench import Bench

Play = Callable[[Mapping[str, Any], Bench], dict[str, Any]]
"""Plays a plan at a bench, to the end; the result, as JSON holds it."""

KINDS: Final[Mapping[str, str]] = {
    "sweep": "serving.lab.experiments.sweep",
    "overload": "serving.lab.experiments.overload",
    "three_ways": "serving.lab.experiments.three_ways",
}
"""The module whose `play` plays each: loaded where one is played, and nowhere else."""


def player_of(kind: str) -> Play:
    """Who plays experiments of this kind."""
    return cast(Play, importlib.import_module(KINDS[kind]).play)
