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


def events(pool: PoolName) -> str:
    """Stream of the pool's newest events, few and with a short life: what the monitor marks in its frames."""
    return f"footplate:pool:{pool}:events"


def rolled_up(pool: PoolName) -> str:
    """Key with the end (unix seconds) of the pool's last stretch of time that the monitor summed up."""
    return f"footplate:pool:{pool}:rolled-up"


def control(engine_id: EngineId) -> str:
    """Stream of `Control` for one engine."""
    return f"footplate:engine:{engine_id}:control"


def heartbeat(engine_id: EngineId) -> str:
    """Key with a short life: the engine's `EngineSnapshot`."""
    return f"footplate:engine:{engine_id}:heartbeat"


def processes() -> str:
    """Sorted set of process ids by the time (Redis's, seconds) of their last sign of life, for an hour."""
    return "footplate:processes"


def process(process_id: str) -> str:
    """Key with a `ProcessRecord`, for an hour after its last sign of life."""
    return f"footplate:process:{process_id}"


def process_log(process_id: str) -> str:
    """List of `LogLine`, the oldest first, capped in length; for an hour after the last."""
    return f"footplate:process:{process_id}:log"


def steps(engine_id: EngineId) -> str:
    """Stream of `StepBatch`, an entry's id being the number of its last step; for some minutes after the last."""
    return f"footplate:engine:{engine_id}:steps"


def replies(owner_id: OwnerId) -> str:
    """Stream of `Reply` for one owner."""
    return f"footplate:owner:{owner_id}:replies"


def owner_alive(owner_id: OwnerId) -> str:
    """Key with a short life: the owner lives. Engines abort the work of an owner whose key is gone."""
    return f"footplate:owner:{owner_id}:alive"


def running_owners() -> str:
    """Set of the owners that tell what they run; one whose `running` key is gone is no more."""
    return "footplate:running-owners"


def running(owner_id: OwnerId) -> str:
    """Key with a short life: the owner's `RunningList`."""
    return f"footplate:owner:{owner_id}:running"


def abort_orders(owner_id: OwnerId) -> str:
    """List of `AbortOrder` from consoles to one owner, with a short life."""
    return f"footplate:owner:{owner_id}:abort-orders"


def abort_answers(order_id: str) -> str:
    """List of what the owners say of one `AbortOrder`, with a short life."""
    return f"footplate:abort-order:{order_id}:answers"


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


def alerts() -> str:
    """Hash: the alerts that go on, by rule and pool, written by the active monitor."""
    return "footplate:alerts"


def alert_log() -> str:
    """Stream of alerts that began or ended, until a job has stored them."""
    return "footplate:alert-log"


def chronicle() -> str:
    """Stream of what was measured in each stretch of ten seconds, and of events, until a job has stored them."""
    return "footplate:chronicle"


def failed_sign_ins() -> str:
    """How many sign-ins to the console failed in about the last minute."""
    return "footplate:console:failed-sign-ins"


def sign_in_failures(kind: str, place: int) -> str:
    """How often a password failed lately, for the names (kind `name`) or addresses (`address`) that share a place."""
    return f"footplate:console:sign-in-failures:{kind}:{place}"


def sample_traffic(pool: PoolName) -> str:
    """What plays sample traffic to the pool, while it does: JSON with a short life."""
    return f"footplate:pool:{pool}:sample-traffic"


def request_log() -> str:
    """Stream of requests that ended, written by their owners, until a job has stored them."""
    return "footplate:requests"


MAX_LOGGED_REQUESTS = 200_000
"""Requests that may wait there: many minutes' worth, should the job be away."""
