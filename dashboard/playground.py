"""The playground: a conversation or a text with any parameter that the API takes, answered as it comes.

A page sends what the API would be sent, and shows it to be copied; see `serving.api.playground`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_POST, require_safe

from dashboard.pages import render_page
from dashboard.permissions import may_prompt, may_watch
from dashboard.prompting import answer_in_lines, check_user, describe, line_of, note_prompt, read_object, refuse
from dashboard.services import Answer, Candidate, TextDelta, TokenCounts, TokenEntry, scope_of, services_of
from dashboard.threads import in_thread
from serving.tuning import selectors

Endpoint = Literal["chat", "completion"]


@require_safe
@login_required
async def playground(request: HttpRequest) -> HttpResponseBase:
    """The page, for the pool of `?pool=`, or else the first."""
    page = await in_thread(_read_page, request.GET.get("pool"), user=await request.auser())
    return await render_page(request, "dashboard/playground.html", page)


@require_POST
async def play(request: HttpRequest, pool: str, endpoint: Endpoint) -> HttpResponseBase:
    """Ask the pool's model: `{"text": …, "tokens": …}` lines, with `logprobs` where they were asked for, then one
    `{"done": …}` or `{"error": …}`.

    What is refused before the answer begins has its HTTP status and `{"error": {code, message, param}}`.
    """
    try:
        user = await check_user(request)
        scope = scope_of(request)
        answer = await services_of(request).prompter.play(
            pool,
            endpoint,
            read_object(request.body),
            request_id=scope.request_id,
            arrived_at=scope.arrived_at,
            cleanup=scope.cleanup,
        )
        await note_prompt(request, user, pool=pool)
    except Exception as error:
        return refuse(error)
    return answer_in_lines(_lines(answer))


@dataclasses.dataclass(frozen=True, slots=True)
class PoolOption:
    """A pool that may be asked. `is_only_one` where no other pool serves its model: it need not be named then."""

    name: str
    model: str
    is_only_one: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Parameter:
    """A number that may be given; left empty, it is `usual`."""

    name: str
    label: str
    usual: str
    help: str
    value: str = ""


PARAMETERS = (
    Parameter("max_tokens", "Max tokens", "the rest of the context (completion: 16)", "Most tokens to generate", "256"),
    Parameter("temperature", "Temperature", "1", "0 takes the most probable token, 2 is the wildest", "0.7"),
    Parameter("top_p", "Top p", "1", "Draw from the most probable tokens that make up this share"),
    Parameter("top_k", "Top k", "off", "Draw from so many of the most probable tokens"),
    Parameter("min_p", "Min p", "0", "Leave out what is less probable than this share of the first"),
    Parameter("seed", "Seed", "random", "The same seed gives the same answer"),
    Parameter("presence_penalty", "Presence penalty", "0", "-2 to 2, against what was said at all"),
    Parameter("frequency_penalty", "Frequency penalty", "0", "-2 to 2, against what was said often"),
    Parameter("repetition_penalty", "Repetition penalty", "1", "0.01 to 10, against words of prompt and answer"),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlaygroundPage:
    """What `playground.html` shows. `pool` is the chosen one, None where there is none yet."""

    page: str = "playground"
    pool: PoolOption | None
    pools: tuple[PoolOption, ...]
    parameters: tuple[Parameter, ...] = PARAMETERS
    may_prompt: bool


def _read_page(name: str | None, *, user: Any) -> PlaygroundPage:
    if not may_watch(user):
        raise PermissionDenied
    stored = selectors.configured_pools()
    num_of_model = {pool.model: sum(other.model == pool.model for other in stored) for pool in stored}
    pools = tuple(PoolOption(pool.name, pool.model, num_of_model[pool.model] == 1) for pool in stored)
    chosen = next((pool for pool in pools if pool.name == name), pools[0] if pools else None)
    return PlaygroundPage(pool=chosen, pools=pools, may_prompt=may_prompt(user))


async def _lines(answer: Answer) -> AsyncIterator[bytes]:
    reason, num_tokens = None, 0
    try:
        async for delta in answer:
            reason = delta.finish_reason or reason
            num_tokens += delta.num_tokens
            if delta.text or delta.logprobs:
                yield line_of(_piece_of(delta, num_tokens))
    except Exception as error:
        yield line_of({"error": describe(error)})
        return
    yield line_of({"done": {"finish_reason": reason, **_usage_of(answer.usage)}})


def _piece_of(delta: TextDelta, num_tokens: int) -> dict[str, Any]:
    piece: dict[str, Any] = {"text": delta.text, "tokens": num_tokens}
    return piece if delta.logprobs is None else {**piece, "logprobs": [_entry_of(entry) for entry in delta.logprobs]}


def _entry_of(entry: TokenEntry) -> dict[str, Any]:
    return {**_candidate_of(entry), "top": _candidates_of(entry.top)}


def _candidates_of(candidates: Sequence[Candidate]) -> list[dict[str, Any]]:
    return [_candidate_of(candidate) for candidate in candidates]


def _candidate_of(candidate: Candidate) -> dict[str, Any]:
    return {"token": candidate.spelling.name, "logprob": candidate.logprob}


def _usage_of(usage: TokenCounts) -> dict[str, Any]:
    counts: dict[str, Any] = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
    timings = usage.timings
    if timings is None:
        return counts
    return {
        **counts,
        "queue_ms": timings.queue_seconds * 1000,
        "prefill_ms": timings.prefill_seconds * 1000,
        "decode_ms": timings.decode_seconds * 1000,
        "num_preemptions": timings.num_preemptions,
        "num_cached_tokens": timings.num_cached_tokens,
    }
