"""What an operator tells an engine to do. Blocking: async code calls these through `serving.threads.in_thread`."""

from __future__ import annotations

from typing import Literal, cast

from django.db import transaction
from redis import Redis

from serving.audit.actions import Action
from serving.audit.services import record
from serving.contracts import keys
from serving.contracts.actors import Author
from serving.contracts.decoding import decode_or_none
from serving.contracts.errors import EngineNotFound, InvalidValue, NothingChanges
from serving.contracts.ids import EngineId
from serving.contracts.messages import Drain, EngineStanding, Restart, Resume, decode_snapshot, encode
from serving.contracts.texts import is_storable

EngineAct = Literal["drain", "resume", "restart"]
LONGEST_REASON = 500
POSSIBLE: dict[EngineAct, tuple[EngineStanding, ...]] = {
    "drain": ("ready",),
    "resume": ("draining", "drained"),
    "restart": ("ready", "draining", "drained"),
}
"""In which states an engine can be told what."""
_MESSAGES: dict[EngineAct, Drain | Resume | Restart] = {"drain": Drain(), "resume": Resume(), "restart": Restart()}
_ACTIONS: dict[EngineAct, Action] = {
    "drain": "engine drained",
    "resume": "engine resumed",
    "restart": "engine restarted",
}


def tell_engine(engine_id: EngineId, act: EngineAct, *, actor: Author, reason: str, redis: Redis) -> None:
    """Send the engine a command and write down who did; it obeys between two steps.

    Raises `InvalidValue` for a reason that cannot be kept, `EngineNotFound` where no engine of this id lives, and
    `NothingChanges` where its state makes the act impossible. Errors of Redis pass through, and nothing is written down
    then.
    """
    if not is_storable(reason, longest=LONGEST_REASON):
        bounds = f"a text of at most {LONGEST_REASON} characters, none of them NUL, without an API key"
        raise InvalidValue("reason", reason, bounds)
    snapshot = decode_or_none(decode_snapshot, cast("bytes | None", redis.get(keys.heartbeat(engine_id))))
    if snapshot is None:
        raise EngineNotFound(f"engine {engine_id[:100]!r} is gone: its heart does not beat")
    if snapshot.standing not in POSSIBLE[act]:
        raise NothingChanges(f"engine {engine_id} is {snapshot.standing} by now, and cannot be told to {act}")
    with transaction.atomic():
        record(_ACTIONS[act], actor=actor, subject_kind="engine", subject=engine_id, pool=snapshot.pool, reason=reason)
        _send(engine_id, _MESSAGES[act], redis=redis)


def _send(engine_id: EngineId, message: Drain | Resume | Restart, *, redis: Redis) -> None:
    pipe = redis.pipeline(transaction=False)
    pipe.xadd(keys.control(engine_id), {keys.FIELD: encode(message)}, maxlen=keys.MAX_CONTROL_ENTRIES, approximate=True)
    pipe.expire(keys.control(engine_id), keys.CONTROL_LIFE_SECONDS)
    pipe.execute()
