"""Names of everything that Footplate keeps in Redis. One list, so that two parts never disagree on a key.

All data keys hold what can be lost: the database and the owners can rebuild it.
"""

from serving.contracts.ids import EngineId, OwnerId, PoolName

FIELD = b"m"
"""The field of a stream entry that holds its encoded message."""

ENGINE_GROUP = "engines"
"""The consumer group that a pool's engines share on its inbox."""


MAX_CONTROL_ENTRIES = 100_000
"""Entries that an engine's control stream may hold: far more than an engine leaves unread."""

CONTROL_LIFE_SECONDS = 600
"""A control stream that nobody writes to goes: its engine may have left."""


def inbox(pool: PoolName) -> str:
    """Stream of `Submit`: read by any engine of the pool, each entry once, deleted when read."""
    return f"footplate:pool:{pool}:inbox"


def announced_tunables(pool: PoolName) -> str:
    """Key with `AnnouncedTunables`."""
    return f"footplate:pool:{pool}:tunables"


def engines(pool: PoolName) -> str:
    """Sorted set of the pool's engine ids by the time (Redis's, seconds) of their last heartbeat."""
    return f"footplate:pool:{pool}:engines"


def permits(pool: PoolName) -> str:
    """Sorted set: permit ids of the waiting room by the time their lease ends."""
    return f"footplate:pool:{pool}:permits"


def permit_weights(pool: PoolName) -> str:
    """Hash: permit id → weight, and the two totals."""
    return f"footplate:pool:{pool}:permit-weights"


def outcomes(pool: PoolName) -> str:
    """Hash of the books: each owner's counters of submitted and of every outcome, and those of past owners."""
    return f"footplate:pool:{pool}:outcomes"


def rejections() -> str:
    """Hash: how many requests were refused before any pool had them, by code."""
    return "footplate:rejections"


def frame(pool: PoolName) -> str:
    """Key with the latest merged frame of the pool, written by the monitor."""
    return f"footplate:pool:{pool}:frame"


def history(pool: PoolName) -> str:
    """Stream of the pool's points, one a second for the last quarter of an hour, written by the monitor."""
    return f"footplate:pool:{pool}:history"


def control(engine_id: EngineId) -> str:
    """Stream of `Control` for one engine."""
    return f"footplate:engine:{engine_id}:control"


def heartbeat(engine_id: EngineId) -> str:
    """Key with a short life: the engine's `EngineSnapshot`."""
    return f"footplate:engine:{engine_id}:heartbeat"


def replies(owner_id: OwnerId) -> str:
    """Stream of `Reply` for one owner."""
    return f"footplate:owner:{owner_id}:replies"


def owner_alive(owner_id: OwnerId) -> str:
    """Key with a short life: the owner lives. Engines abort the work of an owner whose key is gone."""
    return f"footplate:owner:{owner_id}:alive"


def intervals(pool: PoolName) -> str:
    """Stream of `IntervalBatch`: what owners measured, capped in length; read by the monitor."""
    return f"footplate:pool:{pool}:intervals"


def admission_epoch() -> str:
    """Key whose value names the state of all tenants, keys and quotas: another one after each change."""
    return "footplate:admission:epoch"


def quota_book(subject: str) -> str:
    """Hash: the sums of what a tenant or key used, and the entries that they are made of."""
    return f"footplate:quota:{subject}:book"


def quota_charges(subject: str) -> str:
    """Sorted set: permit ids of the last minute by the time they were charged."""
    return f"footplate:quota:{subject}:charges"


def quota_leases(subject: str) -> str:
    """Sorted set: permit ids of what is open by the time their lease ends."""
    return f"footplate:quota:{subject}:leases"


def monitor_lease() -> str:
    """Key with a short life: which monitor process is the active one."""
    return "footplate:monitor:lease"


def known_pools() -> str:
    """Key with the names of all pools, written by the active monitor: for one that takes over without the database."""
    return "footplate:monitor:pools"
