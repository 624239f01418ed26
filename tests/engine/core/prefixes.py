"""Contexts that begin alike, and what became of them."""

from __future__ import annotations

from serving.contracts.messages import EngineTimings, Event, Tokens
from tests.engine.core.harness import World

PREFIX = list(range(100, 120))
"""Five blocks of four tokens."""


def prefix_and(*rest: int) -> list[int]:
    return [*PREFIX, *rest]


def starts_of(world: World, name: str) -> list[int]:
    """Where each prefill of a request began."""
    chunks = [chunk for plan in world.runner.plans for chunk in plan.chunks if chunk.key.request_id == name]
    return [chunk.start for index, chunk in enumerate(chunks) if index == 0 or chunk.start < chunks[index - 1].end]


def first_timings(events: list[Event], name: str) -> EngineTimings:
    first = next(event for event in events if isinstance(event, Tokens) and event.key.request_id == name)
    assert first.timings is not None
    return first.timings


def hits(world: World) -> tuple[int, int]:
    counts = world.counts()
    return counts.prefix_query_tokens_total, counts.prefix_hit_tokens_total
