"""One request over HTTP, and what its client sees of the answer."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Callable
from typing import Any

import aiohttp

from serving.lab.playing.target import Target
from serving.lab.summaries import Ending
from serving.lab.workloads.workload import PlannedRequest

_MAX_LINE_BYTES = 4 * 2**20
_LONGEST_WORDS = 300
ALWAYS_REFUSALS, REFUSALS_WITH_WORDS = (429,), (408, 503)
"""Statuses with which a server turns work away by its own policy. Of the latter only an answer that says when to come
back, or is an error of the API's shape, is its policy: any proxy sends them for a server that is gone."""


@dataclasses.dataclass(slots=True)
class Answer:
    """What was seen of an answer so far; moments are seconds of one monotonic clock. `told` says how many tokens came
    with each of the `arrivals` of text, None where the server did not say. `num_output_tokens` is what the server
    counted, or else `num_told_tokens`: what was told, where an arrival of which nothing was counts as one."""

    sent_at: float = 0.0
    arrivals: list[float] = dataclasses.field(default_factory=list)
    told: list[int | None] = dataclasses.field(default_factory=list)
    num_told_tokens: int = 0
    end_at: float = 0.0
    ending: Ending = "finished"
    code: str = ""
    words: str = ""
    counted_tokens: int | None = None
    num_prompt_tokens: int | None = None
    queue_seconds: float | None = None
    retry_after_seconds: float | None = None
    request_id: str = ""

    @property
    def num_output_tokens(self) -> int:
        """Tokens of the answer."""
        return self.num_told_tokens if self.counted_tokens is None else self.counted_tokens

    def note_arrival(self, now: float, *, told: int | None) -> None:
        """Text came, of so many tokens."""
        self.arrivals.append(now)
        self.told.append(told)
        self.num_told_tokens += 1 if told is None else told


class Cancelled(Exception):
    """The client went away, as the workload asked."""


def client_session() -> aiohttp.ClientSession:
    """What requests are made with: as many at once as there are, each over a connection of its own, since a kept one
    that the server closes at that moment would count as the server's failure."""
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    return aiohttp.ClientSession(connector=connector, read_bufsize=_MAX_LINE_BYTES)


async def ask(
    session: aiohttp.ClientSession,
    target: Target,
    planned: PlannedRequest,
    prompt: list[int] | str,
    *,
    into: Answer,
    on_text: Callable[[float], None],
) -> None:
    """Send a request and read its answer to the end, into `into` as it comes; `on_text` hears of each arrival of text.

    A failure is written down, never raised. Whoever cancels the call finds there what had come until then.
    """
    into.sent_at = time.monotonic()
    headers = {"Authorization": f"Bearer {target.key_of(planned.tenant)}"} if target.key_of(planned.tenant) else {}
    timeout = aiohttp.ClientTimeout(total=target.timeout_seconds)
    try:
        async with session.post(
            f"{target.url.rstrip('/')}{_path_of(target)}",
            json=_body_of(target, planned, prompt),
            headers=headers,
            timeout=timeout,
        ) as response:
            into.request_id = response.headers.get("x-request-id", "")
            if response.status != 200:
                await _read_refusal(response, into)
            elif planned.is_streamed:
                await _read_stream(response, planned, into, on_text)
            else:
                await _read_whole(response, planned, into, on_text)
    except Cancelled:
        into.ending = "cancelled"
    except TimeoutError:
        _fail(into, "timeout", f"no end within {target.timeout_seconds:g} s")
    except (aiohttp.ClientError, OSError, ValueError, AttributeError, TypeError, LookupError) as error:
        _fail(into, "broken", f"{type(error).__name__}: {error}")
    finally:
        into.end_at = time.monotonic()


def _path_of(target: Target) -> str:
    return "/v1/chat/completions" if target.prompts == "chat" else "/v1/completions"


def _body_of(target: Target, planned: PlannedRequest, prompt: list[int] | str) -> dict[str, Any]:
    body: dict[str, Any] = {"model": target.model, "max_tokens": planned.num_output_tokens, "temperature": 0}
    if target.prompts == "chat":
        body["messages"] = [{"role": "user", "content": prompt}]
    else:
        body["prompt"] = prompt
    if planned.is_streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    if target.ignore_eos:
        body["ignore_eos"] = True
    if planned.priority:
        body["priority"] = planned.priority
    if target.pool:
        body["pool"] = target.pool
    if target.pool or target.is_footplate:
        body["timings"] = True
    return body


async def _read_refusal(response: aiohttp.ClientResponse, into: Answer) -> None:
    text = (await response.content.read(_MAX_LINE_BYTES)).decode("utf-8", "replace")
    code, words, is_of_api = f"http_{response.status}", text[:_LONGEST_WORDS], False
    try:
        error = json.loads(text)["error"]
        code, words = str(error.get("code") or error.get("type") or code), str(error.get("message"))[:_LONGEST_WORDS]
        is_of_api = True
    except (ValueError, LookupError, TypeError, AttributeError):
        pass  # It is no error of the API's shape: what there is, is shown.
    into.code, into.words = code, words
    into.retry_after_seconds = _seconds(response.headers.get("retry-after"))
    says_why = is_of_api or into.retry_after_seconds is not None
    is_policy = response.status in ALWAYS_REFUSALS or (response.status in REFUSALS_WITH_WORDS and says_why)
    into.ending = "refused" if is_policy else "failed"


async def _read_stream(
    response: aiohttp.ClientResponse, planned: PlannedRequest, into: Answer, on_text: Callable[[float], None]
) -> None:
    is_done = False
    async for line in response.content:
        now = time.monotonic()
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            is_done = True
            continue
        event = json.loads(data)
        if "error" in event:
            error = event["error"]
            _fail(into, str(error.get("code") or error.get("type") or "error"), str(error.get("message")))
            return
        _note_usage(event, into)
        if any(_text_of(choice) for choice in event.get("choices", ())) and _note_text(event, into, now):
            on_text(now)
            _cancel_if_due(planned, into)
    if not is_done:
        _fail(into, "broken", "the stream ended without its last event")


async def _read_whole(
    response: aiohttp.ClientResponse, planned: PlannedRequest, into: Answer, on_text: Callable[[float], None]
) -> None:
    if planned.cancel_after_tokens is not None:
        # Nobody sees how far an answer is that comes in one piece: the client goes away before it.
        raise Cancelled
    event = await response.json(content_type=None)
    now = time.monotonic()
    _note_usage(event, into)
    into.note_arrival(now, told=into.counted_tokens)
    on_text(now)


def _note_text(event: dict[str, Any], into: Answer, now: float) -> bool:
    """Write down an arrival of text; False where it is of tokens that came before, and so none of its own."""
    told = _tokens_told(event, into)
    if told == 0 and into.arrivals:
        return False
    into.note_arrival(now, told=told or None)
    return True


def _tokens_told(event: dict[str, Any], into: Answer) -> int | None:
    """How many tokens an event's text is of, where the server says: by their ids, or by a usage that goes on counting
    (vLLM's `continuous_usage_stats`). A usage that comes but once, with the last text, counts them all."""
    ids = [choice["token_ids"] for choice in event.get("choices", ()) if choice.get("token_ids")]
    if ids:
        return sum(map(len, ids))
    if not event.get("usage") or into.counted_tokens is None or None in into.told[-1:]:
        return None
    return max(0, into.counted_tokens - into.num_told_tokens)


def _cancel_if_due(planned: PlannedRequest, into: Answer) -> None:
    if planned.cancel_after_tokens is not None and into.num_told_tokens >= max(1, planned.cancel_after_tokens):
        raise Cancelled


def _text_of(choice: dict[str, Any]) -> str:
    """What a choice of an event says, thoughts and calls of tools included."""
    if "text" in choice:
        return str(choice["text"] or "")
    delta = choice.get("delta") or {}
    return str(delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls") or "")


def _note_usage(event: dict[str, Any], into: Answer) -> None:
    usage = event.get("usage")
    if usage:
        into.counted_tokens = int(usage["completion_tokens"])
        into.num_prompt_tokens = int(usage["prompt_tokens"])
    timings = event.get("timings")
    if timings and timings.get("queue_ms") is not None:
        into.queue_seconds = float(timings["queue_ms"]) / 1000


def _fail(into: Answer, code: str, words: str) -> None:
    into.ending, into.code, into.words = "failed", code, words[:_LONGEST_WORDS]


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


async def wait_until(moment: float) -> None:
    """Sleep until a moment of the monotonic clock."""
    await asyncio.sleep(max(0.0, moment - time.monotonic()))
