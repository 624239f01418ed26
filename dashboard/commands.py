"""From a page's command to a service call and its answer. Blocking: the consumer calls this on a thread."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from datetime import UTC

from redis import Redis

from dashboard.presenters import StoredVersion
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
from serving.contracts.actors import Actor, Author
from serving.contracts.errors import DomainError, PoolNotFound, StaleVersion
from serving.contracts.tunables import describe
from serving.telemetry.frames import INTERVAL_NAMES, PERCENTILES, POINT_FIELDS, WINDOWS_SECONDS
from serving.tuning import selectors, services

Command = Change | RollBack | ListVersions


@dataclasses.dataclass(frozen=True, slots=True)
class Commands:
    """Carries out what pages of one pool ask. `redis` is a blocking client."""

    pool: str
    redis: Redis

    def greet(self, operator: Operator) -> Hello:
        """What a page needs to read all that follows. Raises `PoolNotFound`."""
        pool = selectors.find_pool(self.pool)
        return Hello(
            pool=self.pool,
            model=pool.model,
            user=operator.name,
            may_steer=operator.may_steer,
            point_fields=POINT_FIELDS,
            windows_seconds=WINDOWS_SECONDS,
            interval_names=INTERVAL_NAMES,
            percentiles=PERCENTILES,
            tunables=describe(),
            versions=_describe(selectors.versions_of(pool, limit=NUM_VERSIONS)),
        )

    def answer(self, command: Command, operator: Operator, *, address: str = "") -> Versions | Stored | Refused:
        """Carry a command out in the operator's name; what the services refuse is told with all that helps. `address`
        is where the page is.

        Raises `PoolNotFound`: a page whose pool is gone has nothing more to ask.
        """
        if isinstance(command, ListVersions):
            return Versions(id=command.id, versions=_describe(selectors.versions(self.pool, limit=NUM_VERSIONS)))
        if not operator.may_steer:
            return Refused(id=command.id, code="permission_denied", message="you may watch, but not change tunables")
        author = Actor(operator.name, "user", address=address)
        try:
            return Stored(id=command.id, version=describe_version(self._store(command, author=author)))
        except PoolNotFound:
            raise
        except DomainError as error:
            return Refused(
                id=command.id,
                code=error.code,
                message=error.message,
                param=error.param,
                newer=self._newer_than(command.based_on) if isinstance(error, StaleVersion) else [],
            )

    def _store(self, command: Change | RollBack, *, author: Author) -> StoredVersion:
        if isinstance(command, Change):
            return services.change(
                self.pool,
                command.changes,
                reason=command.reason,
                author=author,
                redis=self.redis,
                based_on=command.based_on,
                guardrail=command.guardrail,
                canary=command.canary,
                canary_engine=command.canary_engine,
            )
        return services.roll_back(
            self.pool,
            command.version,
            reason=command.reason,
            author=author,
            redis=self.redis,
            based_on=command.based_on,
        )

    def _newer_than(self, number: int) -> list[VersionInfo]:
        return _describe(selectors.versions_after(self.pool, number, limit=NUM_VERSIONS))


def describe_version(version: StoredVersion) -> VersionInfo:
    """A stored version as pages are told of it; a tunable younger than it has its default."""
    return VersionInfo(
        number=version.number,
        values=selectors.tunables_of(version.values).as_dict(),
        changes=version.changes,
        reason=version.reason,
        author=version.author,
        created_at=version.created_at.astimezone(UTC).isoformat(),
    )


def _describe(versions: Iterable[StoredVersion]) -> list[VersionInfo]:
    return [describe_version(version) for version in versions]
