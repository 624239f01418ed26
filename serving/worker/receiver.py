"""From Redis to the mailbox: the pool's inbox and this engine's control stream."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from serving.contracts import keys
from serving.contracts.errors import DomainError
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import (
    SCHEMA_VERSION,
    Drain,
    Refused,
    Restart,
    Resume,
    Submit,
    decode_control,
    decode_submit,
)
from serving.worker.mailbox import Mailbox
from serving.worker.publisher import Publisher

if TYPE_CHECKING:
    from serving.engine.sampling.grammars import MaskProvider

logger = logging.getLogger(__name__)

_BLOCK_MS = 500
_NO_CREDIT_MS = 20
_READ_COUNT = 256
_LONGEST_BACKOFF_SECONDS = 2.0


class Receiver:
    """Owns the thread that reads this engine's two streams, and its places in them.

    Reading an inbox entry acknowledges and deletes it: delivery is never repeated by the stream, the owner alone tries
    again. An engine that is alone drains the inbox at once, so that order, window and fairness see every waiting
    request; with others beside it, it takes only what its `credits` allow.
    """

    def __init__(
        self,
        redis: Redis,
        *,
        engine_id: EngineId,
        pool: PoolName,
        mailbox: Mailbox,
        publisher: Publisher,
        num_credits: Callable[[], int | None],
        masks: MaskProvider | None = None,
    ) -> None:
        self._redis = redis
        self._engine_id = engine_id
        self._inbox = keys.inbox(pool)
        self._control = keys.control(engine_id)
        self._mailbox = mailbox
        self._publisher = publisher
        self._num_credits = num_credits
        self._masks = masks
        self._read_ids: dict[bytes, list[bytes]] = {}
        self._stopping = threading.Event()
        self._paused = False
        self._leaving = False
        self._thread = threading.Thread(target=self._read_all, name="receiver", daemon=True)

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop_taking_work(self) -> None:
        """Read commands only from now on, whatever they say."""
        self._leaving = True

    def stop(self, *, timeout_seconds: float) -> None:
        """End the thread; gives up after `timeout_seconds`."""
        self._stopping.set()
        with contextlib.suppress(RedisError, OSError):
            # Nobody else reads it, and a read that blocks on it ends with it.
            self._redis.xgroup_destroy(self._control, keys.ENGINE_GROUP)
        self._thread.join(timeout_seconds)
        with contextlib.suppress(RedisError, OSError):
            self._redis.xgroup_delconsumer(self._inbox, keys.ENGINE_GROUP, self._engine_id)

    def _read_all(self) -> None:
        backoff = 0.1
        has_groups = False
        while not self._stopping.is_set():
            try:
                if not has_groups:
                    self._make_groups()
                    has_groups = True
                self._read_once()
                backoff = 0.1
            except Exception as error:  # Whatever it is, an engine that hears nothing is worth nothing: it goes on.
                if self._stopping.is_set():
                    return
                has_groups = False
                logger.warning("cannot read: %s; trying again in %.1f s", error, backoff)
                self._stopping.wait(backoff)
                backoff = min(backoff * 2, _LONGEST_BACKOFF_SECONDS)

    def _make_groups(self) -> None:
        for stream in (self._inbox, self._control):
            try:
                self._redis.xgroup_create(stream, keys.ENGINE_GROUP, id="0", mkstream=True)
            except ResponseError as error:
                if not str(error).startswith("BUSYGROUP"):
                    raise

    def _read_once(self) -> None:
        takes_work = not (self._paused or self._leaving)
        num_credits = self._num_credits() if takes_work else 0
        streams: dict[Any, Any] = {self._control: ">"}
        reads_inbox = num_credits is None or num_credits > 0
        if reads_inbox:
            streams[self._inbox] = ">"
        answer = self._redis.xreadgroup(
            keys.ENGINE_GROUP,
            self._engine_id,
            streams,
            count=_READ_COUNT if num_credits is None else max(1, min(_READ_COUNT, num_credits)),
            # Credits come back without a word; the word to take work again is an entry.
            block=_BLOCK_MS if reads_inbox or not takes_work else _NO_CREDIT_MS,
            noack=True,
        )
        # Taken first, deleted then: what a broken connection leaves undeleted is deleted the next time.
        for stream, entries in _pairs(answer):
            take = self._take_submit if stream.decode() == self._inbox else self._take_control
            for entry_id, fields in entries:
                self._read_ids.setdefault(stream, []).append(entry_id)
                take(fields.get(keys.FIELD, b""))
        for stream, entry_ids in list(self._read_ids.items()):
            self._redis.xdel(stream, *entry_ids)
            del self._read_ids[stream]

    def _take_submit(self, message: bytes) -> None:
        try:
            submit = decode_submit(message)
        except (msgspec.MsgspecError, DomainError) as error:
            logger.error("an inbox entry is no Submit and was dropped: %s", error)
            return
        if submit.schema_version != SCHEMA_VERSION:
            self._refuse_schema(submit)
            return
        self._prepare(submit)
        self._mailbox.put(submit)

    def _prepare(self, submit: Submit) -> None:
        """Compile what a text has to follow, so that the engine's thread finds it compiled; failures are told there."""
        if self._masks is not None and submit.params.grammar is not None:
            with contextlib.suppress(Exception):
                self._masks.compile(submit.params.grammar)

    def _refuse_schema(self, submit: Submit) -> None:
        text = f"this engine reads messages of version {SCHEMA_VERSION}, not {submit.schema_version}"
        logger.error(text)
        refusal = Refused(submit.key, submit.attempt, "unsupported_schema", text)
        self._publisher.publish([(submit.owner_id, refusal)])

    def _take_control(self, message: bytes) -> None:
        try:
            command = decode_control(message)
        except (msgspec.MsgspecError, DomainError) as error:
            logger.error("a control entry cannot be read and was dropped: %s", error)
            return
        match command:
            case Drain():
                self._paused = True
            case Resume():
                self._paused = False
            case Restart():
                self.stop_taking_work()
        self._mailbox.put(command)


def _pairs(answer: Any) -> list[tuple[bytes, list[tuple[bytes, dict[bytes, bytes]]]]]:
    if not answer:
        return []
    if isinstance(answer, dict):
        return [(stream, lists[0]) for stream, lists in answer.items()]
    return [(stream, entries) for stream, entries in answer]
