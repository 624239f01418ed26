"""What a measured workload was measured from."""

from __future__ import annotations

import datetime
from typing import Final

import msgspec

from serving.lab.fingerprints import Fingerprint
from serving.lab.workloads.estimating import FittedArrivals, FittedLengths

_UNKNOWN: Final = Fingerprint()


class ClassEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a class was measured from. `output` is None where none of its requests finished with a token."""

    num_requests: int
    num_finished: int
    prompt: FittedLengths
    output: FittedLengths | None


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What a workload was measured from. `num_in_range` is how many requests the log has, `num_requests` how many were
    looked at. `rates` are arrivals a second in equal parts of `rate_seconds`. `fingerprint` is the pool's of that
    time (empty: no engine lived)."""

    pool: str
    tenant: str
    since: datetime.datetime
    until: datetime.datetime
    first_at: datetime.datetime
    last_at: datetime.datetime
    num_in_range: int
    num_requests: int
    arrivals: FittedArrivals
    rate_seconds: float
    rates: tuple[float, ...]
    classes: dict[str, ClassEvidence]
    notes: tuple[str, ...]
    fingerprint: Fingerprint = _UNKNOWN
