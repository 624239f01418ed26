"""Several observers of one gateway's requests, told as one."""

from __future__ import annotations

from typing import Protocol

from serving.contracts.ids import EngineId, PoolName
from serving.gateway.observer import Ended, RequestObserver


class Observer(RequestObserver, Protocol):
    """Hears of requests that a pool had, and of those that none had."""

    def rejected(self, code: str) -> None:
        """A request was refused with one of the API's codes before any pool had it."""


class Observers:
    """Owns nothing: tells each of its observers, in their order, what it is told; on the gateway's event loop."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def rejected(self, code: str) -> None:
        """A request was refused before any pool had it."""
        for observer in self._observers:
            observer.rejected(code)

    def submitted(self, pool: PoolName) -> None:
        """A request was let in and now waits."""
        for observer in self._observers:
            observer.submitted(pool)

    def scheduled(self, pool: PoolName, *, queue_seconds: float, engine_id: EngineId | None = None) -> None:
        """A request was first scheduled."""
        for observer in self._observers:
            observer.scheduled(pool, queue_seconds=queue_seconds, engine_id=engine_id)

    def first_token(self, pool: PoolName, *, ttft_seconds: float, engine_id: EngineId | None = None) -> None:
        """A request's first token is on its way."""
        for observer in self._observers:
            observer.first_token(pool, ttft_seconds=ttft_seconds, engine_id=engine_id)

    def token_gap(self, pool: PoolName, *, itl_seconds: float, engine_id: EngineId | None = None) -> None:
        """A later token is on its way."""
        for observer in self._observers:
            observer.token_gap(pool, itl_seconds=itl_seconds, engine_id=engine_id)

    def ended(self, ended: Ended) -> None:
        """A request ended."""
        for observer in self._observers:
            observer.ended(ended)
