"""Domain errors. Each carries a stable code; only `serving.api.errors` knows what HTTP makes of it."""

from __future__ import annotations

from typing import Any, ClassVar

from serving.contracts.texts import without_secrets

RETRY_SECONDS = 5.0
"""When to try again where nobody knows better: about as long as a server or an engine takes to start."""


class DomainError(Exception):
    """A refusal with a stable `code`, a message for people and, where one is to blame, the field `param`."""

    code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param


class InvalidValue(DomainError):
    """A field's value is outside its bounds; the message names field, value and bounds."""

    code = "invalid_value"

    def __init__(self, field: str, value: Any, bounds: str) -> None:
        super().__init__(f"{field} must be {bounds}, not {_shortened(value)}", param=field)
        self.field = field
        self.bounds = bounds


class NothingChanges(DomainError):
    """What is asked for is in force already."""

    code = "invalid_value"


class UnusableGrammar(DomainError):
    """No answer can follow the grammar that was asked for."""

    code = "invalid_value"


class UnknownField(DomainError):
    """A field that does not exist was named."""

    code = "unknown_field"


class ContextLengthExceeded(DomainError):
    """Prompt plus answer cannot fit the context limit or the KV pool."""

    code = "context_length_exceeded"


class ModelNotFound(DomainError):
    """No pool serves the model that was asked for."""

    code = "model_not_found"


class PoolNotFound(DomainError):
    """No pool has this name."""

    code = "pool_not_found"


class PoolNotConfigured(PoolNotFound):
    """The pool of this name is on record, and no longer configured: its past can be read, and nothing be done to it."""

    code = "pool_not_configured"


class TenantNotFound(DomainError):
    """No tenant has this id."""

    code = "tenant_not_found"


class KeyNotFound(DomainError):
    """The tenant has no key with this prefix."""

    code = "key_not_found"


class EngineNotFound(DomainError):
    """No engine with this id lives."""

    code = "engine_not_found"


class RuleNotFound(DomainError):
    """There is no alert rule with this id."""

    code = "rule_not_found"


class NameTaken(DomainError):
    """Another one has this name already."""

    code = "name_taken"


class InvalidKey(DomainError):
    """The API key is missing, malformed, unknown, expired or revoked."""

    code = "invalid_api_key"


class PermissionDenied(DomainError):
    """The API key is known but lacks the scope."""

    code = "permission_denied"


class QueueFull(DomainError):
    """The waiting room is full; `retry_after_seconds` says when to try again, and `is_final` that it never helps: the
    request alone exceeds a bound."""

    code = "queue_full"

    def __init__(self, message: str, *, retry_after_seconds: float, is_final: bool = False) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.is_final = is_final


class PredictedTooLate(DomainError):
    """The request would miss its deadline at the rate at which the queue moves; `retry_after_seconds` says when it is
    expected to meet it."""

    code = "predicted_too_late"

    def __init__(self, message: str, *, retry_after_seconds: float) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class QuotaExceeded(DomainError):
    """A tenant or key would use more than its quota. `retry_after_seconds` says when that no longer holds;
    `is_final` that this is more than a minute away, or never."""

    def __init__(self, message: str, *, retry_after_seconds: float, is_final: bool) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds
        self.is_final = is_final


class RateLimited(QuotaExceeded):
    """Too much at once, or within a minute."""

    code = "rate_limit_exceeded"


class QuotaSpent(QuotaExceeded):
    """The tokens of the day or the month are used up."""

    code = "insufficient_quota"


class PromptTooLong(DomainError):
    """The prompt is longer than the quota `max_prompt_tokens` allows."""

    code = "prompt_too_long"


class QueueTimeout(DomainError):
    """The request waited longer than `max_queue_wait_ms`, or than its own `timeout`, without being scheduled."""

    code = "queue_timeout"

    def __init__(self, message: str, *, retry_after_seconds: float = RETRY_SECONDS) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class Unavailable(DomainError):
    """Nothing can serve the request now: draining, no engine, or Redis out of reach. `retry_after_seconds` says when
    that is expected to be over."""

    code = "unavailable"

    def __init__(self, message: str, *, retry_after_seconds: float = RETRY_SECONDS) -> None:
        super().__init__(message)
        self.retry_after_seconds = retry_after_seconds


class NoEngine(Unavailable):
    """No engine of the pool can serve the request now."""


class EngineFailure(DomainError):
    """The engine could not go on with an accepted request."""

    code = "engine_error"


class AbortedByOperator(DomainError):
    """An operator ended the request from the console."""

    code = "aborted_by_operator"


class StaleVersion(DomainError):
    """Someone else made a change after the version that this one was based on."""

    code = "stale_version"


class CanaryRuns(DomainError):
    """A version is being tried on one engine: until it is taken to all or back, nothing else can be changed."""

    code = "canary_running"


def _shortened(value: Any, limit: int = 80) -> str:
    text = without_secrets(repr(value))
    return text if len(text) <= limit else text[: limit - 1] + "…"
