"""What is known of a pool that the seven steps of tuning rest on."""

from __future__ import annotations

import datetime
from typing import Final, Literal

import msgspec

from serving.lab.fingerprints import Fingerprint

Kind = Literal["run", "sweep", "overload", "three_ways"]

_WORDS: Final[dict[Kind, str]] = {
    "run": "run",
    "sweep": "sweep",
    "overload": "overload test",
    "three_ways": "comparison",
}


class Ref(msgspec.Struct, frozen=True, order=True):
    """Names something that the Lab played or is to play."""

    kind: Kind
    id: int

    @property
    def words(self) -> str:
        """As people say it: `overload test 7`."""
        return f"{_WORDS[self.kind]} {self.id}"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was measured on the pool's engines. `says` is what came of it, in words, `trouble` what somebody
    should look at."""

    ref: Ref
    title: str
    ended_at: datetime.datetime
    fingerprint: Fingerprint
    says: str
    trouble: str = ""


class Try(msgspec.Struct, frozen=True, kw_only=True):
    """Something that waits or plays, or that ended without a result: `error` says why."""

    ref: Ref
    state: str
    error: str = ""

    @property
    def goes_on(self) -> bool:
        """Whether something may still come of it."""
        return self.state in ("waiting", "running")


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """A saved workload that was measured from the pool's traffic, as it is saved now. `slo` is what its requests are to
    keep, in words, where that is not what a pool has from the start (empty: it is)."""

    name: str
    tenant: str
    until: datetime.datetime
    num_requests: int
    num_classes: int
    fingerprint: Fingerprint
    slo: str = ""


class Traffic(msgspec.Struct, frozen=True, kw_only=True):
    """The requests that came after a workload was measured, held against it: the largest difference of cumulative
    shares of prompts' and of answers' lengths (0 to 1; None: too few to tell)."""

    num_requests: int
    prompts: float | None = None
    answers: float | None = None
    bound: float = 1.0


class Targets(msgspec.Struct, frozen=True, kw_only=True):
    """The objectives in force and those that a pool has from the start, in milliseconds; `version` stored them."""

    ttft_ms: float
    itl_ms: float
    first_ttft_ms: float
    first_itl_ms: float
    version: int

    @property
    def are_chosen(self) -> bool:
        """Whether they differ from those that nobody chose."""
        return (self.ttft_ms, self.itl_ms) != (self.first_ttft_ms, self.first_itl_ms)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What there is for one step: its newest result, and the newest try where that is younger. `hint` says what there
    is instead and why it does not count."""

    result: Result | None = None
    newest: Try | None = None
    hint: str = ""


class PoolEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """All that the steps of one pool rest on. `now` is empty where no engine lives, or nobody can tell.
    `has_requests` says whether the log knows any request of the pool."""

    pool: str
    now: Fingerprint
    has_requests: bool
    measured: Measurement | None
    traffic: Traffic | None
    targets: Targets
    sweep: Finding
    run: Finding
    mixture: Finding
    overload: Finding
    three_ways: Finding

    @property
    def results(self) -> tuple[Result, ...]:
        """The results that there are, each once."""
        findings = (self.sweep, self.run, self.mixture, self.overload, self.three_ways)
        found = {each.result.ref: each.result for each in findings if each.result is not None}
        return tuple(found.values())
