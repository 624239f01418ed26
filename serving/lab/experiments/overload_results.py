"""What an overload test came to: its stages, its criteria, and how it went over time."""

from __future__ import annotations

from typing import Literal

import msgspec

from serving.lab.experiments.capacity import Capacity

Judged = Literal["passed", "failed", "not judged"]
"""`not judged` where there is nothing to go by: the verdict says why."""


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """The requests that were due from `begin_seconds` to `end_seconds`, at `multiple` times capacity; rates are
    requests a second. `num_refused` were refused at once or after a wait; `ttft_p95_ms` is of those that were let in
    (E2E where nothing is streamed)."""

    multiple: float
    begin_seconds: float
    end_seconds: float
    num_offered: int
    num_refused: int
    num_failed: int
    offered_per_second: float
    accepted_per_second: float
    goodput_per_second: float
    ttft_p95_ms: float | None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One criterion. `bound` and `measured` are in words with units, `evidence` is what it rests on."""

    name: str
    title: str
    bound: str
    measured: str
    judged: Judged
    evidence: str


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the test from `at_seconds`: requests a second that came, that were let in and that were refused
    (each where it was due), and that ended within their objectives; `num_waiting` as the server told it."""

    at_seconds: float
    offered_per_second: float
    accepted_per_second: float
    refused_per_second: float
    goodput_per_second: float
    num_waiting: float | None


class OverloadResult(msgspec.Struct, frozen=True, kw_only=True):
    """What an overload test came to. `bounds` are the pool's values that its policy consists of. `advice` says what the
    figures suggest, `notes` what a reader must know."""

    pool: str
    workload: str
    is_simulated: bool
    passed: bool
    capacity: Capacity
    stages: tuple[Stage, ...]
    verdicts: tuple[Verdict, ...]
    slices: tuple[Slice, ...]
    bounds: dict[str, float | int | str]
    advice: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
