"""The log of requests on its way: from their owners into a stream in Redis, until a job stores it.

What is lost of it, and when: a record of which no owner could tell Redis within its bounds, what the stream had to let
go since no job came for longer than it holds, and what a Redis without persistence forgets. The owner counts the first
and says so in its own log.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.ids import PoolName, RequestId
from serving.contracts.messages import Span
from serving.contracts.sampling import SamplingParams
from serving.contracts.texts import without_secrets
from serving.gateway.observer import Ended

logger = logging.getLogger(__name__)

MAX_TEXT_BYTES = 64 * 1024
"""Of a prompt, and of an answer, that may be kept."""

_MOST_WAITING = 20_000
_MOST_BYTES = 64 * 1024 * 1024
_RECORDS_AT_ONCE = 500
_BYTES_AT_ONCE = 4 * 1024 * 1024
_MOST_UNREAD_WITH_TEXTS = 2_000
"""Where more wait to be stored, texts are left out: Redis is no place for gigabytes of them."""
_MOST_STOP_TOKENS = 16


class LoggedRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request that ended; see `serving.telemetry.models.RequestRecord`. `arrived_unix_seconds` is of its owner's
    wall clock."""

    request_id: RequestId
    pool: PoolName
    model: str
    endpoint: str
    arrived_unix_seconds: float
    outcome: str
    e2e_seconds: float
    code: str = ""
    tenant: str = ""
    tenant_id: int | None = None
    key_prefix: str = ""
    is_streamed: bool = False
    num_choices: int = 1
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    queue_seconds: float | None = None
    ttft_seconds: float | None = None
    itl_seconds: float | None = None
    num_preemptions: int = 0
    num_attempts: int = 0
    engine: str = ""
    tunables_version: int | None = None
    params: dict[str, Any] = {}
    spans: tuple[Span, ...] = ()
    prompt_text: str | None = None
    output_text: str | None = None


encode_logged = msgspec.msgpack.Encoder().encode
decode_logged = msgspec.msgpack.Decoder(LoggedRequest).decode


class RequestLog:
    """Owns the requests that ended and are not in Redis yet; on the gateway's event loop.

    Holds at most 20,000 of them and 64 MiB; beyond that the oldest go, and are counted. `models` are the models' names
    by pool; `wall_clock` gives seconds since the epoch.
    """

    def __init__(self, *, models: Mapping[PoolName, str], wall_clock: Callable[[], float] = time.time) -> None:
        self._models = models
        self._wall_clock = wall_clock
        self._fresh: deque[tuple[Ended, float]] = deque()
        self._encoded: deque[bytes] = deque()
        self._num_bytes = 0
        self._num_untold = 0
        self.num_dropped = 0
        """Records that were lost here, since the start."""

    def note(self, ended: Ended) -> None:
        """A request has just ended."""
        if len(self._fresh) >= _MOST_WAITING:
            self._fresh.popleft()
            self._drop(1)
        self._fresh.append((ended, self._wall_clock() - ended.e2e_seconds))

    async def publish(self, redis: Redis) -> None:
        """Tell Redis. Its errors pass through; what it was perhaps not told is kept, and told again: whoever stores it
        stores nothing twice."""
        self._tell_of_losses()
        await self._encode(redis)
        while self._encoded:
            batch = self._next_batch()
            pipe = redis.pipeline(transaction=False)
            for record in batch:
                pipe.xadd(keys.request_log(), {keys.FIELD: record}, maxlen=keys.MAX_LOGGED_REQUESTS, approximate=True)
            await pipe.execute()
            for record in batch:
                self._encoded.popleft()
                self._num_bytes -= len(record)

    def _next_batch(self) -> list[bytes]:
        batch: list[bytes] = []
        num_bytes = 0
        for record in self._encoded:
            if batch and (len(batch) == _RECORDS_AT_ONCE or num_bytes + len(record) > _BYTES_AT_ONCE):
                break
            batch.append(record)
            num_bytes += len(record)
        return batch

    async def _encode(self, redis: Redis) -> None:
        if not self._fresh:
            return
        takes_texts = any(ended.texts is not None for ended, _ in self._fresh)
        if takes_texts:
            takes_texts = await redis.xlen(keys.request_log()) <= _MOST_UNREAD_WITH_TEXTS
        taken, self._fresh = self._fresh, deque()
        # Prompts' texts are still to be made of tokens, and what piled up while Redis was away is much at once.
        if takes_texts or len(taken) > _RECORDS_AT_ONCE:
            records = await asyncio.to_thread(self._encoded_of, taken, with_texts=takes_texts)
        else:
            records = self._encoded_of(taken, with_texts=False)
        self._encoded.extend(records)
        self._num_bytes += sum(map(len, records))
        while len(self._encoded) > _MOST_WAITING or self._num_bytes > _MOST_BYTES:
            self._num_bytes -= len(self._encoded.popleft())
            self._drop(1)

    def _encoded_of(self, taken: deque[tuple[Ended, float]], *, with_texts: bool) -> list[bytes]:
        records = []
        for ended, arrived_at in taken:
            model = self._models.get(ended.pool, "")
            try:
                records.append(encode_logged(record_of(ended, arrived_at, model=model, with_texts=with_texts)))
            except Exception:  # One that cannot be written down is no reason to lose the others.
                logger.exception("the end of %s cannot be logged", ended.request_id)
                self._drop(1)
        return records

    def _drop(self, count: int) -> None:
        self.num_dropped += count
        self._num_untold += count

    def _tell_of_losses(self) -> None:
        if self._num_untold:
            logger.warning("%d requests that ended are missing in the log", self._num_untold)
            self._num_untold = 0


def record_of(ended: Ended, arrived_unix_seconds: float, *, model: str, with_texts: bool) -> LoggedRequest:
    """What is to be stored of a request, with its texts where they may be kept and are wanted: they take a while."""
    outcome, _, code = ended.outcome.partition(":")
    origin = ended.origin
    texts = ended.texts if with_texts else None
    return LoggedRequest(
        request_id=ended.request_id,
        pool=ended.pool,
        model=model,
        tenant=origin.tenant_name,
        tenant_id=origin.tenant_id,
        key_prefix=origin.key_prefix,
        endpoint=origin.endpoint,
        is_streamed=origin.is_streamed,
        arrived_unix_seconds=arrived_unix_seconds,
        outcome=outcome,
        code=code,
        num_choices=ended.num_choices,
        prompt_tokens=ended.prompt_tokens,
        cached_tokens=ended.cached_tokens,
        completion_tokens=ended.completion_tokens,
        queue_seconds=ended.queue_seconds,
        ttft_seconds=ended.ttft_seconds,
        itl_seconds=ended.itl_seconds,
        e2e_seconds=ended.e2e_seconds,
        num_preemptions=ended.num_preemptions,
        num_attempts=ended.num_attempts,
        engine=ended.engine,
        tunables_version=ended.tunables_version,
        params={} if ended.params is None else _asked(ended, ended.params),
        spans=ended.spans,
        prompt_text=None if texts is None else _cut(texts.read_prompt()),
        output_text=None if texts is None else _cut(_together(texts.outputs)),
    )


def _asked(ended: Ended, params: SamplingParams) -> dict[str, Any]:
    """How it was to be sampled, as far as it is not as usual. What may hold a text, or is long, is but counted."""
    asked: dict[str, Any] = msgspec.to_builtins(params)
    if params.grammar is not None:
        asked["grammar"] = params.grammar.kind
    if params.logit_bias:
        asked["logit_bias"] = len(params.logit_bias)
    if params.stop_token_ids:
        asked["stop_token_ids"] = list(params.stop_token_ids[:_MOST_STOP_TOKENS])
    extra = {
        "stop_strings": ended.num_stop_strings,
        "priority": ended.priority,
        "timeout_seconds": ended.timeout_seconds,
    }
    return {**asked, **{name: value for name, value in extra.items() if value}}


def _together(outputs: tuple[str, ...]) -> str:
    if len(outputs) == 1:
        return outputs[0]
    return "\n\n".join([f"[choice {index}]\n{output}" for index, output in enumerate(outputs)])


def _cut(text: str) -> str:
    """The beginning of a text, of whole characters; of an API key that somebody wrote there, the public part."""
    text = without_secrets(text)
    if len(text) * 4 <= MAX_TEXT_BYTES:
        return text
    return text.encode(errors="replace")[:MAX_TEXT_BYTES].decode(errors="ignore")
