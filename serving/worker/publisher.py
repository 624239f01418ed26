"""From the engine's thread to the owners: encoding and sending, off the engine's thread."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from collections.abc import Sequence

from redis import Redis
from redis.exceptions import RedisError

from serving.contracts import keys
from serving.contracts.ids import EngineId, OwnerId
from serving.contracts.messages import Event, Reply, encode

logger = logging.getLogger(__name__)

StepEvents = Sequence[tuple[OwnerId, Event]]

_MAX_QUEUED_STEPS = 10_000
_MAX_REPLIES = 50_000
"""Entries that an owner's reply stream may hold. An owner that lags further finds a gap, or silence, and submits
again."""
_LONGEST_BACKOFF_SECONDS = 2.0


class Publisher:
    """Owns the queue of steps whose events are not sent yet, and the thread that sends them.

    One entry an owner and step. When Redis is out of reach it tries again; when the queue is full the oldest step is
    dropped, which its owners notice as a gap.
    """

    def __init__(self, redis: Redis, *, engine_id: EngineId) -> None:
        self._redis = redis
        self._engine_id = engine_id
        self._steps: queue.Queue[StepEvents | None] = queue.Queue(_MAX_QUEUED_STEPS)
        self._thread = threading.Thread(target=self._send_all, name="publisher", daemon=True)

    def start(self) -> None:
        """Begin to send."""
        self._thread.start()

    def publish(self, events: StepEvents) -> None:
        """Queue a step's events. Never blocks."""
        if not events:
            return
        try:
            self._steps.put_nowait(events)
        except queue.Full:
            self._steps.get_nowait()
            self._steps.put_nowait(events)

    def stop(self, *, timeout_seconds: float) -> None:
        """Send what is queued, then end the thread; gives up after `timeout_seconds`."""
        with contextlib.suppress(queue.Full):
            self._steps.put(None, timeout=timeout_seconds)
        self._thread.join(timeout_seconds)

    def _send_all(self) -> None:
        backoff = 0.1
        while (events := self._steps.get()) is not None:
            while True:
                try:
                    self._send(events)
                    backoff = 0.1
                    break
                except (RedisError, OSError) as error:
                    logger.warning("cannot publish: %s; trying again in %.1f s", error, backoff)
                    time.sleep(backoff)
                    backoff = min(backoff * 2, _LONGEST_BACKOFF_SECONDS)
                except Exception:  # What cannot be sent at all is dropped; its owners notice.
                    logger.exception("a step's events are dropped")
                    break

    def _send(self, events: StepEvents) -> None:
        by_owner: dict[OwnerId, list[Event]] = {}
        for owner_id, event in events:
            by_owner.setdefault(owner_id, []).append(event)
        pipe = self._redis.pipeline(transaction=False)
        for owner_id, own in by_owner.items():
            message = encode(Reply(self._engine_id, own))
            pipe.xadd(keys.replies(owner_id), {keys.FIELD: message}, maxlen=_MAX_REPLIES, approximate=True)
            # Who died meanwhile reads no more: its stream goes by itself.
            pipe.expire(keys.replies(owner_id), 600)
        pipe.execute()
