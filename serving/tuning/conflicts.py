"""Where the value of one tunable fights another's, or the engines' size. Pure: the one list of these rules."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable

from serving.contracts.tunables import Tunables


@dataclasses.dataclass(frozen=True, slots=True)
class Conflict:
    """What is admitted and yet cannot be meant: the tunables concerned, the first of them the one to look at."""

    fields: tuple[str, ...]
    message: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """The smallest engine of a pool: its KV blocks, of so many tokens each, the longest context of its model, and the
    largest step that it has memory for, if it has a bound."""

    num_blocks: int
    block_size: int
    max_model_len: int
    max_step_tokens: int | None = None


def conflicts_of(tunables: Tunables, envelope: Envelope | None = None) -> list[Conflict]:
    """What of these values fights what else, in the order of the levers; rules about the engines' size only where an
    engine tells it."""
    found = [rule(tunables) for rule in _RULES]
    if envelope is not None:
        found += [rule(tunables, envelope) for rule in _ENVELOPE_RULES]
    return [conflict for conflict in found if conflict is not None]


def envelope_of(sizes: Iterable[Envelope]) -> Envelope | None:
    """The smallest of each; None where no engine lives."""
    known = list(sizes)
    if not known:
        return None
    return Envelope(
        num_blocks=min(size.num_blocks for size in known),
        block_size=min(size.block_size for size in known),
        max_model_len=min(size.max_model_len for size in known),
        max_step_tokens=min((size.max_step_tokens for size in known if size.max_step_tokens is not None), default=None),
    )


def _window_beyond_objective(t: Tunables) -> Conflict | None:
    if t.batch_window_ms <= t.slo_ttft_ms:
        return None
    return Conflict(
        ("batch_window_ms", "slo_ttft_ms"),
        f"The window alone ({t.batch_window_ms:g} ms) is longer than the objective for the first token"
        f" ({t.slo_ttft_ms:g} ms): whoever waits for company misses it.",
    )


def _window_beyond_wait(t: Tunables) -> Conflict | None:
    if t.batch_window_ms < t.max_queue_wait_ms:
        return None
    return Conflict(
        ("batch_window_ms", "max_queue_wait_ms"),
        f"A request is refused after {t.max_queue_wait_ms:g} ms in the queue, before the window of"
        f" {t.batch_window_ms:g} ms ends.",
    )


def _more_running_than_budget(t: Tunables) -> Conflict | None:
    if t.max_running <= t.max_batch_tokens:
        return None
    return Conflict(
        ("max_running", "max_batch_tokens"),
        f"Each running sequence wants one token of every step, and a step has {t.max_batch_tokens}: of {t.max_running}"
        " sequences some stand still in each step.",
    )


def _nothing_left_for_prompts(t: Tunables) -> Conflict | None:
    if t.prefill_share > 0 or t.max_running != t.max_batch_tokens:
        return None
    return Conflict(
        ("max_running", "max_batch_tokens", "prefill_share"),
        f"With decodes first, a full batch of {t.max_running} takes the whole budget: prompts get the least share"
        " alone, a sixteenth.",
    )


def _chunk_beyond_budget(t: Tunables) -> Conflict | None:
    if t.max_prefill_chunk <= t.max_batch_tokens:
        return None
    return Conflict(
        ("max_prefill_chunk", "max_batch_tokens"),
        f"A step has {t.max_batch_tokens} tokens in all: a chunk never reaches {t.max_prefill_chunk}.",
    )


def _more_long_than_running(t: Tunables) -> Conflict | None:
    if t.max_long_prefills <= t.max_running:
        return None
    return Conflict(
        ("max_long_prefills", "max_running"),
        f"No more than {t.max_running} sequences run, so that {t.max_long_prefills} long prompts never are in prefill"
        " at once.",
    )


def _static_share(t: Tunables) -> Conflict | None:
    if t.mode != "static" or t.prefill_share == Tunables().prefill_share:
        return None
    return Conflict(
        ("prefill_share", "mode"),
        "In static mode nobody joins while others decode: prefill_share decides next to nothing.",
    )


def _static_without_window(t: Tunables) -> Conflict | None:
    if t.mode != "static" or t.batch_window_ms > 0:
        return None
    return Conflict(
        ("batch_window_ms", "mode"),
        "In static mode a batch without a window is whoever waits at that moment, often one, and the next waits for"
        " its end.",
    )


def _reject_without_objective(t: Tunables) -> Conflict | None:
    if t.early_reject != "on" or t.slo_ttft_ms < t.max_queue_wait_ms:
        return None
    return Conflict(
        ("early_reject", "slo_ttft_ms", "max_queue_wait_ms"),
        f"early_reject has no objective to go by: nobody waits longer than {t.max_queue_wait_ms:g} ms, and the"
        f" objective is {t.slo_ttft_ms:g} ms.",
    )


def _queue_without_company(t: Tunables) -> Conflict | None:
    if t.batch_window_ms == 0 or t.max_queue_requests > 1:
        return None
    return Conflict(
        ("max_queue_requests", "batch_window_ms"),
        "Only one sequence may wait: it waits for company that is refused.",
    )


def _context_beyond_memory(t: Tunables, size: Envelope) -> Conflict | None:
    usable = int(size.num_blocks * t.kv_limit_ratio)
    if usable * size.block_size >= size.max_model_len:
        return None
    return Conflict(
        ("kv_limit_ratio",),
        f"Of {size.num_blocks} KV blocks {usable} may be used, {usable * size.block_size:,} tokens: a context of"
        f" {size.max_model_len:,}, which the model takes, is refused.",
    )


def _budget_beyond_memory(t: Tunables, size: Envelope) -> Conflict | None:
    if size.max_step_tokens is None or t.max_batch_tokens <= size.max_step_tokens:
        return None
    return Conflict(
        ("max_batch_tokens",),
        f"An engine keeps memory for steps of {size.max_step_tokens:,} tokens (its setting max_step_tokens): none of"
        f" {t.max_batch_tokens:,} is ever computed.",
    )


def _fewer_blocks_than_running(t: Tunables, size: Envelope) -> Conflict | None:
    usable = int(size.num_blocks * t.kv_limit_ratio)
    if usable >= t.max_running:
        return None
    return Conflict(
        ("max_running", "kv_limit_ratio"),
        f"{usable} KV blocks may be used, and each sequence needs one at least: {t.max_running} never run at once.",
    )


def _long_beyond_context(t: Tunables, size: Envelope) -> Conflict | None:
    # The default is a bound for models of any length, and no mistake of whoever has a shorter one.
    if t.long_prompt_tokens < size.max_model_len or t.long_prompt_tokens == Tunables().long_prompt_tokens:
        return None
    return Conflict(
        ("long_prompt_tokens",),
        f"The model's context ends at {size.max_model_len:,} tokens: no prompt is ever long.",
    )


def _queue_below_context(t: Tunables, size: Envelope) -> Conflict | None:
    if t.max_queue_tokens >= size.max_model_len:
        return None
    return Conflict(
        ("max_queue_tokens",),
        f"A prompt of more than {t.max_queue_tokens:,} tokens is refused even by an empty queue; the model takes"
        f" {size.max_model_len:,}.",
    )


_RULES: tuple[Callable[[Tunables], Conflict | None], ...] = (
    _window_beyond_objective,
    _window_beyond_wait,
    _static_without_window,
    _more_running_than_budget,
    _nothing_left_for_prompts,
    _chunk_beyond_budget,
    _static_share,
    _more_long_than_running,
    _queue_without_company,
    _reject_without_objective,
)
_ENVELOPE_RULES: tuple[Callable[[Tunables, Envelope], Conflict | None], ...] = (
    _budget_beyond_memory,
    _fewer_blocks_than_running,
    _long_beyond_context,
    _queue_below_context,
    _context_beyond_memory,
)
