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
from dashboard.threads import in_thread
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
    "prompt_too_long": 400,
    "signed_out": 401,
    "permission_denied": 403,
    "pool_not_found": 404,
    "queue_full": 429,
    "predicted_too_late": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
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
        await _check_user(request)
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
    except Exception as error:
        return _refuse(error)
    return StreamingHttpResponse(_lines(answer), content_type="application/x-ndjson", headers=_HEADERS)


def read_question(body: bytes) -> Question:
    """A checked question. Raises a `DomainError` that names field, value and bounds."""
    try:
        given = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        raise InvalidJson("the body is not valid JSON") from None
    if not isinstance(given, dict):
        raise InvalidJson("the body must be a JSON object")
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


async def _check_user(request: HttpRequest) -> None:
    """Raises `SignedOut` and `NotAllowed`.

    Not by `request.auser()`: what Django's own thread takes from the database's pool goes back when the response has
    ended, and an answer may take minutes.
    """
    key = request.COOKIES.get(settings.SESSION_COOKIE_NAME)
    await in_thread(check_prompter, key)


async def _lines(answer: Answer) -> AsyncIterator[bytes]:
    reason = None
    try:
        async for delta in answer:
            reason = delta.finish_reason or reason
            if delta.text:
                yield _line({"text": delta.text})
    except Exception as error:
        yield _line({"error": _describe(error)})
        return
    usage = answer.usage
    yield _line(
        {
            "done": {
                "finish_reason": reason,
                "prompt_tokens": usage.prompt_tokens,
                "completion_tokens": usage.completion_tokens,
            }
        }
    )


def _line(value: Any) -> bytes:
    return msgspec.json.encode(value) + b"\n"


def _refuse(error: Exception) -> HttpResponse:
    description = _describe(error)
    headers = {}
    if isinstance(error, PredictedTooLate | QueueFull | QuotaExceeded | Unavailable):
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_seconds)))
    return HttpResponse(
        msgspec.json.encode({"error": description}),
        status=_STATUS.get(description["code"] or "", 500),
        content_type="application/json",
        headers=headers,
    )


def _describe(error: Exception) -> dict[str, str | None]:
    if isinstance(error, DomainError):
        return {"code": error.code, "message": error.message, "param": error.param}
    logger.error("A prompt from the console failed", exc_info=error)
    return {**_FAILED}
