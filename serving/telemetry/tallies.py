"""How requests ended, second by second: from the owners' totals to rates and counts that add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from serving.contracts.ids import OwnerId
from serving.telemetry.frames import OutcomeRates
from serving.telemetry.intervals import OWNER_LOST, IntervalBatch

REJECTED = "rejected:"
"""Begins the names of what was refused before any pool had it."""

KEPT_SECONDS = 900
_EXPIRED_TOGETHER = 60
_RATE_SECONDS = 5
_REFUSED = "refused:"


class OutcomeTally:
    """Owns what a pool's counters gained in each second of the last 15 minutes; on the monitor's event loop.

    What an owner gained is the difference of its totals from one batch to the next, so that batches which never
    arrived are made up for, and a Redis that lost everything and has it again counts nothing twice. What no owner tells
    of, requests that died with theirs and those that no pool ever had, is the growth of counters in Redis.
    """

    def __init__(self) -> None:
        self._totals: dict[OwnerId, tuple[int, Mapping[str, int]]] = {}
        self._seconds: dict[int, Counter[str]] = {}
        self._counters: dict[str, int] | None = None
        self._expired_before = 0

    def take_batch(self, batch: IntervalBatch, *, at: int) -> None:
        """Add what an owner's next batch tells, written in second `at`; that of the owner's first is its own counts."""
        totals, earlier = batch.totals.counts, self._totals.get(batch.owner_id)
        self._totals[batch.owner_id] = (at, totals)
        self._add(batch.counts if earlier is None else _growth(totals, earlier[1]), at=at)

    def take_counters(self, *, books: Mapping[str, int], rejections: Mapping[str, int], at: int) -> None:
        """Add by how much counters that belong to no living owner have grown since they were last told."""
        counters = {f"{REJECTED}{code}": count for code, count in rejections.items()}
        counters[OWNER_LOST] = books.get(OWNER_LOST, 0)
        if self._counters is not None:
            self._add(_growth(counters, self._counters), at=at)
        self._counters = counters

    def expire(self, *, now: int) -> None:
        """Drop what lies more than 15 minutes before `now`; an owner that was silent for so long is gone."""
        limit = now - KEPT_SECONDS
        limit -= limit % _EXPIRED_TOGETHER
        if limit <= self._expired_before:
            return
        self._expired_before = limit
        self._seconds = {second: gained for second, gained in self._seconds.items() if second >= limit}
        self._totals = {owner: told for owner, told in self._totals.items() if told[0] >= limit}

    def total(self, *, since: int, until: int) -> Counter[str]:
        """What was gained in the seconds `since … until - 1`."""
        gained: Counter[str] = Counter()
        for second in range(since, until):
            gained.update(self._seconds.get(second, {}))
        return gained

    def rates(self, *, now: int) -> OutcomeRates:
        """Of the last five whole seconds."""
        gained = self.total(since=now - _RATE_SECONDS, until=now)
        return OutcomeRates(
            finished_per_second=_of_kind(gained, "finished") / _RATE_SECONDS,
            refused_per_second=_of_kind(gained, "refused") / _RATE_SECONDS,
            failed_per_second=_of_kind(gained, "failed") / _RATE_SECONDS,
            aborted_per_second=_of_kind(gained, "aborted") / _RATE_SECONDS,
            goodput_per_second=gained["slo_met"] / _RATE_SECONDS,
        )

    def refusals_per_second(self, *, now: int) -> dict[str, float]:
        """Of the same seconds, by code, the commonest first; `rejected:<code>` those that no pool had."""
        refusals = refusals_of(self.total(since=now - _RATE_SECONDS, until=now))
        return {code: count / _RATE_SECONDS for code, count in refusals.items()}

    def _add(self, gained: Mapping[str, int], *, at: int) -> None:
        if gained:
            self._seconds.setdefault(at, Counter()).update(gained)


def refusals_of(counts: Mapping[str, int]) -> dict[str, int]:
    """Those of counts by name that are refusals, by code, the commonest first."""
    refusals = Counter(
        {
            name.removeprefix(_REFUSED): count
            for name, count in counts.items()
            if count and name.startswith((_REFUSED, REJECTED))
        }
    )
    return dict(refusals.most_common())


def outcomes_of(counts: Mapping[str, int]) -> dict[str, int]:
    """How many finished, were refused, failed and were aborted."""
    return {kind: _of_kind(counts, kind) for kind in ("finished", "refused", "failed", "aborted")}


def _of_kind(counts: Mapping[str, int], kind: str) -> int:
    return sum(count for name, count in counts.items() if name.partition(":")[0] == kind)


def _growth(now: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    """By how much each counter grew; one that shrank began anew, and tells nothing this once."""
    growth = {name: count - before.get(name, 0) for name, count in now.items()}
    return {name: gained for name, gained in growth.items() if gained > 0}
