"""Messages between owners (gateways) and engines, and their encoding.

Tagged unions in msgpack. Every envelope carries `SCHEMA_VERSION`; who reads another version says so and does not guess.
Text and logits never appear here: tokens go in, tokens (or a prompt's embedding) come out.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from serving.contracts.ids import EngineId, OwnerId, PoolName, RequestId
from serving.contracts.sampling import SamplingParams
from serving.contracts.tunables import Tunables

SCHEMA_VERSION = 2
MAX_PRIORITY = 100
"""The least urgent priority; its negative is the most urgent."""

FinishReason = Literal["stop", "length", "abort", "error"]
RefusalCode = Literal["context_length_exceeded", "queue_timeout", "draining", "invalid_value", "unsupported_schema"]


class SequenceKey(msgspec.Struct, frozen=True, array_like=True):
    """Names one sequence: a choice of a request."""

    request_id: RequestId
    choice: int


# --- to the engine -------------------------------------------------------------------------------------------------


class Submit(msgspec.Struct, frozen=True, tag="submit", kw_only=True, omit_defaults=True):
    """Run one sequence. `generated_ids` are tokens that an earlier attempt delivered: they are context, and count
    towards `max_tokens`; the next token has position `len(generated_ids)`. `waited_seconds` is the time already spent
    waiting before this attempt, taken on the owner's clock.

    `priority` orders requests where the pool's order is `priority`: the lower, the more urgent. `weight` is the
    tenant's share where it is `fair`. KV blocks are reused only among requests of one tenant and one `cache_salt`.
    `timeout_seconds` is the longest wait that the request itself allows before it is first scheduled."""

    key: SequenceKey
    attempt: int
    owner_id: OwnerId
    tenant: str
    prompt_ids: list[int]
    params: SamplingParams
    generated_ids: list[int] = []
    waited_seconds: float = 0.0
    priority: int = 0
    weight: float = 1.0
    cache_salt: str = ""
    timeout_seconds: float | None = None
    schema_version: int = SCHEMA_VERSION


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """End one choice's attempts up to this one. May arrive before the Submit, and is then remembered."""

    key: SequenceKey
    attempt: int


class Retune(msgspec.Struct, frozen=True, tag="retune", omit_defaults=True):
    """Run these tunables, whole, from the next step. An older version than the running one is ignored, unless `force`
    says that the newer one is no longer stored anywhere."""

    version: int
    tunables: Tunables
    force: bool = False


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """Accept nothing new, finish what runs, and stay."""


class Resume(msgspec.Struct, frozen=True, tag="resume"):
    """Accept work again after a `Drain`. Nothing to an engine that leaves."""


class Restart(msgspec.Struct, frozen=True, tag="restart"):
    """Accept nothing new, finish what ends within the time for draining, hand the rest back, and leave: whatever
    supervises the process starts it anew."""


Control = Abort | Retune | Drain | Resume | Restart

# --- from the engine to the owner ----------------------------------------------------------------------------------


SpanKind = Literal["prefill", "decode", "preempted"]


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a sequence did for a while: one chunk of prefill in one step, a run of decode steps, or, having given way,
    nothing until it was scheduled again. `offset_ms` counts from when the attempt was first scheduled; `batch_size` is
    how many sequences the step computed at its beginning. `num_tokens` were computed; a token is sampled by the last
    chunk of a prefill and by each decode step."""

    kind: SpanKind
    offset_ms: float
    duration_ms: float
    num_tokens: int
    batch_size: int


class EngineTimings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Durations that only the engine can know, in seconds of its own clock, up to the event that bears them. `spans`
    are its account of the attempt, at most 64 of them: where there were more, neighbours are told as one."""

    queue_seconds: float = 0.0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    num_preemptions: int = 0
    num_cached_tokens: int = 0
    spans: tuple[Span, ...] = ()


class Accepted(msgspec.Struct, frozen=True, tag="a", array_like=True):
    """The engine has the sequence. Said when it comes, and again every few seconds while it lives. While it waits
    there, `num_ahead` counts the sequences that would be served before it if none came."""

    key: SequenceKey
    attempt: int
    num_ahead: int | None = None


class Scheduled(msgspec.Struct, frozen=True, tag="s", array_like=True):
    """The attempt was scheduled for the first time, `age_seconds` before this was sent: it no longer waits."""

    key: SequenceKey
    attempt: int
    age_seconds: float


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """How probable a token was, as the natural logarithm of its probability before any filter, and which tokens were
    the most probable at its place, the most probable first. Nothing here is infinite or no number."""

    logprob: float
    top_ids: list[int]
    top_logprobs: list[float]


class Tokens(msgspec.Struct, frozen=True, tag="t", array_like=True):
    """Tokens of one step; `start_index` is the position of the first among the sequence's generated tokens.
    `timings` come with the first of an attempt. Where they were asked for, `logprobs` has an entry a token, and
    `prompt_logprobs`, which come with the sequence's very first token, one for each prompt token but the first."""

    key: SequenceKey
    attempt: int
    start_index: int
    token_ids: list[int]
    timings: EngineTimings | None = None
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None


class Finished(msgspec.Struct, frozen=True, tag="f", array_like=True):
    """The sequence ended. `num_generated` counts all attempts' tokens. `message` explains reason `error`. `embedding`
    is the prompt's, where one was asked for and the reason is `stop`: a vector of length 1, fp32, little-endian."""

    key: SequenceKey
    attempt: int
    reason: FinishReason
    num_generated: int
    timings: EngineTimings
    message: str = ""
    embedding: bytes | None = None


class Refused(msgspec.Struct, frozen=True, tag="r", array_like=True):
    """The sequence will never run here; nothing was computed for it."""

    key: SequenceKey
    attempt: int
    code: RefusalCode
    message: str


class Returned(msgspec.Struct, frozen=True, tag="b", array_like=True):
    """Handed back, since another engine may have a place or this one leaves: the owner submits the rest anew."""

    key: SequenceKey
    attempt: int


Event = Accepted | Scheduled | Tokens | Finished | Refused | Returned


class Reply(msgspec.Struct, frozen=True):
    """All events of one step for one owner: one entry of its reply stream."""

    engine_id: EngineId
    events: list[Event]
    schema_version: int = SCHEMA_VERSION


# --- what an engine publishes of itself ----------------------------------------------------------------------------

EngineState = Literal["ready", "draining", "drained"]
"""Whether the engine takes work: `ready` does; `draining` finishes what it has; `drained` has nothing left. Who does
not know a state, being of another version, takes the engine for dead: a new one is only for who holds nothing."""
EngineStanding = EngineState | Literal["leaving"]
"""As an operator sees it: `leaving` drains, and ends then."""


class EngineBuild(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine's figures depend on beside its model and its settings: the processor or accelerator by its name,
    the threads that compute (0: an accelerator does), and the code's versions. What is empty is not known."""

    processor: str = ""
    num_threads: int = 0
    footplate_version: str = ""
    torch_version: str = ""


UNKNOWN_BUILD: Final = EngineBuild()


class EngineSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """An engine's state between two steps: its heartbeat's content. Counters (`_total`) count from its start.

    `dtype` says how the weights are kept, `backend` what computes with them: within one of each a seeded text is the
    same.

    `accelerator_ratio` (utilisation, 0 to 1) and `accelerator_memory_bytes` (in use on the device) are the device's
    own account; None where there is no accelerator or it does not tell, and then `busy_ratio` (the share of the last
    seconds spent in steps) and `rss_bytes` (the process's resident memory) say what can be said. The other figures of
    the accelerator are its own too: what power it draws and may draw, its temperature, the clock that it computes with
    and why that is no higher (`power`, `heat` or `hardware`). Engines with one `accelerator_id` share a device, and
    each tells of all of it.

    `build` is what it computes with. `max_step_tokens` is the largest step that it has memory for, whatever
    `max_batch_tokens` allows; None: any.

    Of the `prefix_query_tokens_total` context tokens of sequences that started, `prefix_hit_tokens_total` were found
    cached; what choices of one request share is in neither, and but once in `prompt_tokens_total`. `left_total` counts
    the sequences that gave up their place in the batch for good. `discarded_tokens_total` were computed in vain: for
    sequences that had ended, as look-ahead found out too late. Of the `drafted_tokens_total` that were guessed and
    computed, `accepted_tokens_total` were kept, having been right; these are generated tokens too.
    `padded_tokens_total` is what rectangular batches would have computed for nothing in `static` mode, and of it
    `idle_slot_steps_total` are the slots that static batches left empty, each counted in every step that decodes.

    `num_waiting_long` are those of `num_waiting` in the lane of long prompts, `num_waiting_long_tokens` their part of
    `num_waiting_tokens` (None: an older engine does not tell it); `waiting_by_priority` counts all that wait by their
    request's priority, the commonest eight, and the others under `other`. `prefill_tokens_total` and
    `decode_tokens_total` are what steps computed, whatever came of it, and `step_seconds_total` how long they took. Who
    `leaves` finishes what it can, and ends.
    """

    engine_id: EngineId
    name: str
    pool: PoolName
    model: str
    state: EngineState
    device: str
    dtype: str
    max_model_len: int
    tunables_version: int
    num_waiting: int
    num_waiting_tokens: int
    num_running: int
    block_size: int
    kv_blocks_total: int
    kv_blocks_used: int
    kv_blocks_cached: int
    kv_blocks_free: int
    steps_total: int
    prompt_tokens_total: int
    generated_tokens_total: int
    preemptions_total: int
    padded_tokens_total: int
    busy_ratio: float
    last_step_ms: float
    rss_bytes: int
    uptime_seconds: float
    accelerator_ratio: float | None = None
    accelerator_memory_bytes: int | None = None
    accelerator_id: str = ""
    accelerator_memory_total_bytes: int | None = None
    accelerator_power_watts: float | None = None
    accelerator_power_limit_watts: float | None = None
    accelerator_celsius: float | None = None
    accelerator_clock_mhz: float | None = None
    accelerator_slowed_by: tuple[str, ...] = ()
    backend: str = ""
    prefix_query_tokens_total: int = 0
    prefix_hit_tokens_total: int = 0
    left_total: int = 0
    discarded_tokens_total: int = 0
    drafted_tokens_total: int = 0
    accepted_tokens_total: int = 0
    num_waiting_long: int = 0
    num_waiting_long_tokens: int | None = None
    waiting_by_priority: dict[str, int] = {}
    prefill_tokens_total: int = 0
    decode_tokens_total: int = 0
    step_seconds_total: float = 0.0
    leaves: bool = False
    max_step_tokens: int | None = None
    idle_slot_steps_total: int = 0
    build: EngineBuild = UNKNOWN_BUILD
    schema_version: int = SCHEMA_VERSION

    @property
    def standing(self) -> EngineStanding:
        """Its state, and whether it may be told to resume."""
        return "leaving" if self.leaves else self.state


class AnnouncedTunables(msgspec.Struct, frozen=True):
    """What a pool should run: kept under one Redis key, so that an engine that starts finds it without a database."""

    version: int
    tunables: Tunables


_encoder = msgspec.msgpack.Encoder()


def encode(message: msgspec.Struct) -> bytes:
    """The message in msgpack."""
    return _encoder.encode(message)


decode_submit = msgspec.msgpack.Decoder(Submit).decode
decode_control = msgspec.msgpack.Decoder(Control).decode
decode_reply = msgspec.msgpack.Decoder(Reply).decode
decode_snapshot = msgspec.msgpack.Decoder(EngineSnapshot).decode
decode_announced = msgspec.msgpack.Decoder(AnnouncedTunables).decode
