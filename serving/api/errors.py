"""What HTTP makes of errors: status, headers and OpenAI's envelope. Nothing else knows this."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Mapping

import msgspec
from django.core.exceptions import BadRequest, RequestDataTooBig, SuspiciousOperation
from django.http import Http404, HttpResponse
from ninja.errors import HttpError
from redis.exceptions import RedisError

from serving.contracts.errors import DomainError, Unavailable
from serving.contracts.texts import without_secrets

logger = logging.getLogger(__name__)

_STATUS_AND_TYPE = {
    "invalid_value": (400, "invalid_request_error"),
    "missing_field": (400, "invalid_request_error"),
    "unknown_field": (400, "invalid_request_error"),
    "unsupported_field": (400, "invalid_request_error"),
    "invalid_json": (400, "invalid_request_error"),
    "context_length_exceeded": (400, "invalid_request_error"),
    "prompt_too_long": (400, "invalid_request_error"),
    "invalid_api_key": (401, "authentication_error"),
    "permission_denied": (403, "permission_error"),
    "model_not_found": (404, "invalid_request_error"),
    "pool_not_found": (404, "invalid_request_error"),
    "tenant_not_found": (404, "invalid_request_error"),
    "key_not_found": (404, "invalid_request_error"),
    "name_taken": (409, "conflict_error"),
    "pool_not_configured": (409, "conflict_error"),
    "stale_version": (409, "conflict_error"),
    "canary_running": (409, "conflict_error"),
    "aborted_by_operator": (410, "aborted_error"),  # gone for good: clients try again after most others
    "unsupported_media_type": (415, "invalid_request_error"),
    "queue_full": (429, "rate_limit_error"),
    "predicted_too_late": (429, "rate_limit_error"),
    "rate_limit_exceeded": (429, "rate_limit_error"),
    "insufficient_quota": (429, "rate_limit_error"),
    "queue_timeout": (408, "overloaded_error"),
    "unavailable": (503, "overloaded_error"),
    "engine_error": (500, "server_error"),
}
_STATUS_CODES = {
    400: ("bad_request", "the request is malformed"),
    404: ("not_found", "there is nothing under this path"),
    405: ("method_not_allowed", "this path does not take this method"),
    413: ("request_too_large", "the request's body is too large"),
    500: ("internal_error", "the server failed to answer; the request id tells its operator more"),
}


class MissingField(DomainError):
    """A field that is needed was left out."""

    code = "missing_field"


class UnsupportedField(DomainError):
    """A field of OpenAI's API that has no effect here yet was set to something that asks for one."""

    code = "unsupported_field"


class InvalidJson(DomainError):
    """The body is not one JSON object."""

    code = "invalid_json"


class UnsupportedMediaType(DomainError):
    """The body is declared to be something other than JSON."""

    code = "unsupported_media_type"


class Error(msgspec.Struct, frozen=True):
    """What went wrong. `code` is stable; `message` is for people; `param` names the field to blame, if one is."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorEnvelope(msgspec.Struct, frozen=True):
    """The body of every error."""

    error: Error


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """An error as HTTP shows it."""

    status: int
    error: Error
    headers: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def body(self) -> bytes:
        """The envelope in JSON."""
        return msgspec.json.encode(ErrorEnvelope(self.error))

    def response(self) -> HttpResponse:
        """The whole response."""
        return HttpResponse(self.body, status=self.status, content_type="application/json", headers=dict(self.headers))


def problem_of(error: BaseException) -> Problem:
    """What HTTP makes of an exception; one that nobody foresaw is logged, and its text kept from the client."""
    if isinstance(error, DomainError):
        return _problem_of_domain_error(error)
    if isinstance(error, HttpError):
        return problem_of(error.__cause__) if error.__cause__ is not None else problem_of_status(error.status_code)
    if isinstance(error, RedisError):
        return _problem_of_domain_error(Unavailable("Redis cannot be reached"))
    if isinstance(error, RequestDataTooBig):
        return problem_of_status(413)
    if isinstance(error, Http404):
        return problem_of_status(404)
    if isinstance(error, (BadRequest, SuspiciousOperation)):
        return problem_of_status(400)
    logger.error("a request failed", exc_info=error)
    return problem_of_status(500)


def problem_of_status(status: int, *, headers: Mapping[str, str] | None = None) -> Problem:
    """The problem for a bare status, such as those that Django itself answers with."""
    code, message = _STATUS_CODES.get(status, _STATUS_CODES[500 if status >= 500 else 400])
    kind = "server_error" if status >= 500 else "invalid_request_error"
    return Problem(status, Error(message, kind, None, code), headers or {})


def _problem_of_domain_error(error: DomainError) -> Problem:
    if error.code not in _STATUS_AND_TYPE:
        logger.error("no HTTP status is known for %s", error.code, exc_info=error)
        return problem_of_status(500)
    status, kind = _STATUS_AND_TYPE[error.code]
    # Who sent a key in the wrong place may show the answer to others.
    param = None if error.param is None else without_secrets(error.param)
    return Problem(status, Error(without_secrets(error.message), kind, param, error.code), _headers_of(error))


def _headers_of(error: DomainError) -> dict[str, str]:
    retry_after_seconds = getattr(error, "retry_after_seconds", None)
    if retry_after_seconds is not None:
        headers = {"Retry-After": str(max(1, math.ceil(retry_after_seconds)))}
        # Clients that know the header (OpenAI's do) would else try again in vain.
        return headers | {"x-should-retry": "false"} if getattr(error, "is_final", False) else headers
    if error.code == "invalid_api_key":
        return {"WWW-Authenticate": "Bearer"}
    return {}
