"""The prompt box: one question to a pool's model, answered as newline-delimited JSON while the text comes."""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
from django.conf import settings
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_POST

from dashboard.services import Answer, scope_of, services_of
from dashboard.sessions import check_prompter
from dashboard.signing import acting
from dashboard.threads import in_thread
from serving.audit.services import record
from serving.contracts.errors import (
    DomainError,
    InvalidValue,
    PredictedTooLate,
    QueueFull,
    QuotaExceeded,
    Unavailable,
    UnknownField,
)

logger = logging.getLogger(__name__)

MAX_CHARACTERS = 20_000
MAX_TOKENS = 2_048
MAX_TEMPERATURE = 2.0

_STATUS = {
    "invalid_value": 400,
    "unknown_field": 400,
    "invalid_json": 400,
    "context_length_exceeded": 400,
    "missing_field": 400,
    "unsupported_field": 400,
    "prompt_too_long": 400,
    "signed_out": 401,
    "permission_denied": 403,
    "pool_not_found": 404,
    "queue_full": 429,
    "predicted_too_late": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "aborted_by_operator": 410,
    "unavailable": 503,
}
_HEADERS = {"X-Accel-Buffering": "no"}  # proxies that collect a response would hold its text back
_FAILED = {"code": "internal_error", "message": "the server failed; its log says why", "param": None}


class InvalidJson(DomainError):
    """The body is not one JSON object."""

    code = "invalid_json"


class Question(msgspec.Struct, frozen=True):
    """What the box sends."""

    text: str
    max_tokens: int
    temperature: float


@require_POST
async def prompt(request: HttpRequest, pool: str) -> HttpResponseBase:
    """Ask the pool's model: `{"text": …}` lines, then one `{"done": …}` or `{"error": …}`.

    What is refused before the answer begins has its HTTP status and `{"error": {code, message, param}}`.
    """
    try:
        user = await check_user(request)
        question = read_question(request.body)
        scope = scope_of(request)
        answer = await services_of(request).prompter.prompt(
            pool,
            question.text,
            max_tokens=question.max_tokens,
            temperature=question.temperature,
            request_id=scope.request_id,
            arrived_at=scope.arrived_at,
            cleanup=scope.cleanup,
        )
        await note_prompt(request, user, pool=pool)
    except Exception as error:
        return refuse(error)
    return answer_in_lines(_lines(answer))


def read_question(body: bytes) -> Question:
    """A checked question. Raises a `DomainError` that names field, value and bounds."""
    given = read_object(body)
    for name in given.keys() - {"text", "max_tokens", "temperature"}:
        raise UnknownField(f"there is no field {name[:200]!r}", param=name[:200])
    checks: dict[str, tuple[Callable[[Any], bool], str]] = {
        "text": (_is_text, f"a text of 1 to {MAX_CHARACTERS} characters"),
        "max_tokens": (_is_count, f"an integer from 1 to {MAX_TOKENS}"),
        "temperature": (_is_temperature, f"a number from 0 to {MAX_TEMPERATURE:g}"),
    }
    for name, (is_valid, bounds) in checks.items():
        if not is_valid(given.get(name)):
            raise InvalidValue(name, given.get(name), bounds)
    return Question(given["text"], int(given["max_tokens"]), float(given["temperature"]))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_CHARACTERS and bool(value.strip())


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_TOKENS


def _is_temperature(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= MAX_TEMPERATURE


async def check_user(request: HttpRequest) -> str:
    """The name of the user who asks. Raises `SignedOut` and `NotAllowed`.

    Not by `request.auser()`: what Django's own thread takes from the database's pool goes back when the response has
    ended, and an answer may take minutes.
    """
    key = request.COOKIES.get(settings.SESSION_COOKIE_NAME)
    return await in_thread(check_prompter, key)


async def note_prompt(request: HttpRequest, user: str, *, pool: str) -> None:
    """Write down that a model was asked: not what it was asked."""
    request_id = scope_of(request).request_id
    await in_thread(
        record, "prompt sent", actor=acting(request, user), subject_kind="request", subject=request_id, pool=pool
    )


def read_object(body: bytes) -> dict[str, Any]:
    """A body's JSON object. Raises `InvalidJson`."""
    try:
        given = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        raise InvalidJson("the body is not valid JSON") from None
    if not isinstance(given, dict):
        raise InvalidJson("the body must be a JSON object")
    return given


def answer_in_lines(lines: AsyncIterator[bytes]) -> StreamingHttpResponse:
    """The response that streams these lines."""
    return StreamingHttpResponse(lines, content_type="application/x-ndjson", headers=_HEADERS)


async def _lines(answer: Answer) -> AsyncIterator[bytes]:
    reason = None
    try:
        async for delta in answer:
            reason = delta.finish_reason or reason
            if delta.text:
                yield line_of({"text": delta.text})
    except Exception as error:
        yield line_of({"error": describe(error)})
        return
    usage = answer.usage
    yield line_of(
        {
            "done": {
                "finish_reason": reason,
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
            }
        }
    )


def line_of(value: Any) -> bytes:
    """A value as one line of JSON."""
    return msgspec.json.encode(value) + b"\n"


def refuse(error: Exception) -> HttpResponse:
    """The response to what is refused before its answer begins."""
    description = describe(error)
    headers = {}
    if isinstance(error, PredictedTooLate | QueueFull | QuotaExceeded | Unavailable):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_seconds)))
    return HttpResponse(
        msgspec.json.encode({"error": description}),
        status=_STATUS.get(description["code"] or "", 500),
        content_type="application/json",
        headers=headers,
    )


def describe(error: Exception) -> dict[str, str | None]:
    """An error as a page is told of it; one that nobody foresaw is logged, and its text kept back."""
    if isinstance(error, DomainError):
        return {"code": error.code, "message": error.message, "param": error.param}
    logger.error("A prompt from the console failed", exc_info=error)
    return {**_FAILED}
