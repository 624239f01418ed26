"""From a page's command to a service call and its answer. Blocking: the consumer calls this on a thread."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any, Protocol

from redis import Redis

from dashboard.protocol import (
    NUM_VERSIONS,
    Change,
    Hello,
    ListVersions,
    Refused,
    RollBack,
    Stored,
    VersionInfo,
    Versions,
)
from dashboard.sessions import Operator
from serving.contracts.errors import DomainError, StaleVersion
from serving.contracts.tunables import describe
from serving.telemetry.frames import INTERVAL_NAMES, PERCENTILES, POINT_FIELDS, WINDOWS_SECONDS
from serving.tuning import selectors, services

Command = Change | RollBack | ListVersions


class StoredVersion(Protocol):
    """A version of a pool's tunables as the database has it."""

    number: int
    values: dict[str, Any]
    changes: dict[str, Any]
    reason: str
    author: str
    created_at: datetime


@dataclasses.dataclass(frozen=True, slots=True)
class Commands:
    """Carries out what pages of one pool ask. `redis` is a blocking client."""

    pool: str
    redis: Redis

    def greet(self, operator: Operator) -> Hello:
        """What a page needs to read all that follows. Raises `PoolNotFound`."""
        return Hello(
            pool=self.pool,
            model=selectors.find_pool(self.pool).model,
            user=operator.name,
            may_steer=operator.may_steer,
            point_fields=POINT_FIELDS,
            windows_seconds=WINDOWS_SECONDS,
            interval_names=INTERVAL_NAMES,
            percentiles=PERCENTILES,
            tunables=describe(),
            versions=self._newest(),
        )

    def answer(self, command: Command, operator: Operator) -> Versions | Stored | Refused:
        """Carry a command out in the operator's name; what the services refuse is told with all that helps."""
        if isinstance(command, ListVersions):
            return Versions(id=command.id, versions=self._newest())
        if not operator.may_steer:
            return Refused(id=command.id, code="permission_denied", message="you may watch, but not change tunables")
        try:
            return Stored(id=command.id, version=describe_version(self._store(command, author=operator.name)))
        except DomainError as error:
            return Refused(
                id=command.id,
                code=error.code,
                message=error.message,
                param=error.param,
                newer=self._newer_than(command.based_on) if isinstance(error, StaleVersion) else [],
            )

    def _store(self, command: Change | RollBack, *, author: str) -> StoredVersion:
        if isinstance(command, Change):
            return services.change(
                self.pool,
                command.changes,
                reason=command.reason,
                author=author,
                redis=self.redis,
                based_on=command.based_on,
            )
        return services.roll_back(
            self.pool,
            command.version,
            reason=command.reason,
            author=author,
            redis=self.redis,
            based_on=command.based_on,
        )

    def _newest(self) -> list[VersionInfo]:
        return [describe_version(version) for version in selectors.versions(self.pool, limit=NUM_VERSIONS)]

    def _newer_than(self, number: int) -> list[VersionInfo]:
        newer = selectors.versions_after(self.pool, number, limit=NUM_VERSIONS)
        return [describe_version(version) for version in newer]


def describe_version(version: StoredVersion) -> VersionInfo:
    """A stored version as pages are told of it."""
    return VersionInfo(
        number=version.number,
        values=version.values,
        changes=version.changes,
        reason=version.reason,
        author=version.author,
        created_at=version.created_at.astimezone(UTC).isoformat(),
    )
