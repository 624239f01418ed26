"""What the gateway tells of its requests while they run: the seam to telemetry."""

from __future__ import annotations

from typing import Protocol

from serving.contracts.ids import PoolName


class RequestObserver(Protocol):
    """Hears every request's milestones. Called on the gateway's event loop, per token: must be cheap.

    All intervals are seconds of the gateway's monotonic clock, but for `queue_seconds`, whose engine part is the
    engine's. Each submitted request ends in exactly one call of `ended`.
    """

    def submitted(self, pool: PoolName) -> None:
        """A request was let in and now waits."""

    def scheduled(self, pool: PoolName, *, queue_seconds: float) -> None:
        """A request was first scheduled: it runs from now on."""

    def first_token(self, pool: PoolName, *, ttft_seconds: float) -> None:
        """A request's first token is on its way to the client."""

    def token_gap(self, pool: PoolName, *, itl_seconds: float) -> None:
        """One of a stream's later tokens is on its way."""

    def ended(
        self,
        pool: PoolName,
        *,
        outcome: str,
        was_scheduled: bool,
        e2e_seconds: float,
        prompt_tokens: int,
        completion_tokens: int,
    ) -> None:
        """A request ended. `outcome` is `finished:<reason>`, `aborted`, `refused:<code>` or `failed:<code>`."""
