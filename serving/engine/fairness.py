"""How much service each tenant had: virtual token counters."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from collections.abc import Sequence as Seq

from serving.engine.sequence import Sequence

PROMPT_TOKEN_COST = 1.0
GENERATED_TOKEN_COST = 2.0
"""A generated token takes a step of its own; prices as in the paper (section 3.1)."""

_LEAST_WEIGHT, _MOST_WEIGHT = 1e-6, 1e6
"""A weight beyond these is taken for the nearest of them: sums of costs stay exact enough to compare."""
_MAX_TENANTS = 10_000


class ServiceLedger:
    """Owns the service that each tenant was given, in weighted tokens; used by the engine's thread only.

    A tenant's counter rises by what is computed for it, divided by its weight. One that begins to wait while others do
    is lifted to the least counter of theirs: being away earns no claim. While nobody waits, the last that did sets the
    level. Sheng et al. 2024, "Fairness in Serving Large Language Models", algorithm 2.

    A counter that such a lift would overrule says nothing, and is forgotten from time to time. No more than 10,000 of
    tenants that do not wait are remembered.
    """

    def __init__(self) -> None:
        self._service: dict[str, float] = {}
        self._num_waiting: dict[str, int] = {}
        self._last_tenant: str | None = None
        self._most_kept = 64

    def __len__(self) -> int:
        """Counters remembered."""
        return len(self._service)

    def service(self, tenant: str) -> float:
        """The tenant's counter; for one that is not remembered, the level at which it would begin."""
        service = self._service.get(tenant)
        return self._level() if service is None else service

    def begin_waiting(self, tenant: str) -> None:
        """One sequence more of this tenant waits."""
        num_waiting = self._num_waiting.get(tenant, 0)
        if num_waiting == 0:
            level = self._level()
            self._service[tenant] = max(self._service.get(tenant, level), level)
        self._num_waiting[tenant] = num_waiting + 1
        if len(self._service) > self._most_kept:
            self._forget()

    def end_waiting(self, tenant: str) -> None:
        """One sequence less of this tenant waits."""
        self._num_waiting[tenant] -= 1
        if self._num_waiting[tenant] == 0:
            del self._num_waiting[tenant]
            self._last_tenant = tenant

    def charge(self, tenant: str, cost: float) -> None:
        """Count service that a tenant was given."""
        self._service[tenant] = self.service(tenant) + cost

    @staticmethod
    def cost(num_prompt_tokens: int, num_generated: int, weight: float) -> float:
        """What so many tokens weigh on the counter of a tenant with this weight."""
        tokens = num_prompt_tokens * PROMPT_TOKEN_COST + num_generated * GENERATED_TOKEN_COST
        return tokens / min(max(weight, _LEAST_WEIGHT), _MOST_WEIGHT)

    def share_out(self, lines: Mapping[str, Seq[Sequence]], count: int) -> list[Sequence]:
        """The first `count` of the tenants' lines, taken one by one from whoever was served least, a token given to
        each as it is taken. There are as many. Mutates nothing."""
        heap = [(self.service(tenant), number, 0, line) for number, (tenant, line) in enumerate(lines.items())]
        heapq.heapify(heap)
        chosen: list[Sequence] = []
        while len(chosen) < count:
            service, number, taken, line = heap[0]
            chosen.append(line[taken])
            if taken + 1 < len(line):
                heapq.heapreplace(heap, (service + self.cost(0, 1, line[taken].weight), number, taken + 1, line))
            else:
                heapq.heappop(heap)
        return chosen

    def _level(self) -> float:
        if self._num_waiting:
            return min([self._service[tenant] for tenant in self._num_waiting])
        return 0.0 if self._last_tenant is None else self._service[self._last_tenant]

    def _forget(self) -> None:
        level = self._level()
        idle = [tenant for tenant in self._service if tenant not in self._num_waiting and tenant != self._last_tenant]
        above = [tenant for tenant in idle if self._service[tenant] > level]
        kept = set(above[-_MAX_TENANTS:])
        for tenant in idle:
            if tenant not in kept:
                del self._service[tenant]
        self._most_kept = max(64, 2 * len(self._service))
