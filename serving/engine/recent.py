"""A memory that forgets: what happened lately, bounded in size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class RecentMap(Generic[K, V]):
    """Owns the latest `capacity` entries; one more makes the oldest go. Used by the thread of whoever holds it."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: OrderedDict[K, V] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        """What was last kept under `key`, if that is still remembered."""
        return self._entries.get(key)

    def keep(self, key: K, value: V) -> None:
        """Remember `value` under `key`, as the newest entry."""
        self._entries[key] = value
        self._entries.move_to_end(key)
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
