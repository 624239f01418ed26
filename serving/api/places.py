"""Places for texts that are tokenised for their own sake, and not to be answered."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator

from serving.contracts.errors import QueueFull

_MAX_AT_ONCE = 4
_MAX_OF_TENANT = 2
_USUAL_SECONDS = 1.0
_WEIGHT_OF_LAST = 0.2


class Places:
    """Owns the counts of texts that are being tokenised, by tenant, and how long one takes; on the event loop.

    Such requests wait for no engine, and so pass no waiting room; `max_at_once` bounds them instead, in each web
    process, and `max_of_tenant` those of one tenant, so that none keeps the others out. More are refused as
    `queue_full`, for as long as a text takes on average.
    """

    def __init__(
        self,
        *,
        max_at_once: int = _MAX_AT_ONCE,
        max_of_tenant: int = _MAX_OF_TENANT,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_at_once = max_at_once
        self._max_of_tenant = max_of_tenant
        self._monotonic = monotonic
        self._taken: Counter[int] = Counter()
        self._mean_seconds: float | None = None

    @contextlib.contextmanager
    def take(self, tenant_id: int) -> Iterator[None]:
        """A place for as long as the block runs; raises `QueueFull` where the tenant can have none."""
        self._check(tenant_id)
        began_at = self._monotonic()
        self._taken[tenant_id] += 1
        try:
            yield
        finally:
            self._taken[tenant_id] -= 1
            if not self._taken[tenant_id]:
                del self._taken[tenant_id]
            self._note(self._monotonic() - began_at)

    def _check(self, tenant_id: int) -> None:
        seconds = _USUAL_SECONDS if self._mean_seconds is None else self._mean_seconds
        if self._taken[tenant_id] >= self._max_of_tenant:
            message = f"{self._max_of_tenant} texts of the tenant are being tokenised already"
            raise QueueFull(message, retry_after_seconds=seconds)
        if self._taken.total() >= self._max_at_once:
            raise QueueFull(f"{self._max_at_once} texts are being tokenised already", retry_after_seconds=seconds)

    def _note(self, seconds: float) -> None:
        mean = seconds if self._mean_seconds is None else self._mean_seconds
        self._mean_seconds = mean + _WEIGHT_OF_LAST * (seconds - mean)
