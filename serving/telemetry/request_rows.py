"""Requests that ended, as those read them who look back: values, and what they may be asked by."""

from __future__ import annotations

import dataclasses
import datetime
import math
from typing import Any, Literal

from serving.contracts.errors import InvalidValue

RequestSort = Literal["newest", "oldest", "queue", "ttft", "itl", "e2e", "tokens"]
"""By arrival, or by an interval or by prompt and completion tokens together, the most first."""

INTERVALS = ("queue_seconds", "ttft_seconds", "itl_seconds", "e2e_seconds")
EQUALS = ("pool", "tenant", "key_prefix", "model", "endpoint", "outcome", "code")
"""Fields of a filter that a record's own must equal."""
_LONGEST_SOUGHT = 200


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestFilter:
    """Which requests are meant: those to which all that is given applies; an empty text applies to all.

    `since` and `until` bound the arrival (the latter is the first moment that is too late) and know their time zone.
    The lower bounds are seconds; a request of which an interval is unknown is below all of them. `text` is a request's
    id or how it begins, as the API or its answers tell it. Raises `InvalidValue`, which names the field, for a text
    that no record can have and for a bound that is no number of seconds.
    """

    since: datetime.datetime | None = None
    until: datetime.datetime | None = None
    pool: str = ""
    tenant: str = ""
    key_prefix: str = ""
    model: str = ""
    endpoint: str = ""
    outcome: str = ""
    code: str = ""
    min_queue_seconds: float | None = None
    min_ttft_seconds: float | None = None
    min_itl_seconds: float | None = None
    min_e2e_seconds: float | None = None
    text: str = ""

    def __post_init__(self) -> None:
        for name in (*EQUALS, "text"):
            value = getattr(self, name)
            if "\0" in value or len(value) > _LONGEST_SOUGHT:
                raise InvalidValue(name, value, f"a text of at most {_LONGEST_SOUGHT} characters without NUL")
        for interval in INTERVALS:
            name = f"min_{interval}"
            seconds = getattr(self, name)
            if seconds is not None and not (math.isfinite(seconds) and seconds >= 0):
                raise InvalidValue(name, seconds, "a number of seconds, 0 or more")
        for name in ("since", "until"):
            moment = getattr(self, name)
            assert moment is None or moment.tzinfo is not None, f"{name} is a moment of no known time zone"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """One request that ended; see `serving.telemetry.models.RequestRecord` for what each field says. `pk` is the place
    in which it was stored: what is stored later has a greater one."""

    pk: int
    request_id: str
    pool: str
    model: str
    tenant: str
    tenant_id_then: int | None
    key_prefix: str
    endpoint: str
    is_streamed: bool
    arrived_at: datetime.datetime
    outcome: str
    code: str
    num_choices: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_seconds: float | None
    ttft_seconds: float | None
    itl_seconds: float | None
    e2e_seconds: float
    num_preemptions: int
    num_attempts: int
    engine: str
    tunables_version: int | None

    @property
    def ended_at(self) -> datetime.datetime:
        """When it ended."""
        return self.arrived_at + datetime.timedelta(seconds=self.e2e_seconds)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestDetail:
    """All that is kept of one request. `spans` are lists as `serving.contracts.messages.Span` has its fields: kind,
    offset in ms since the request's arrival, duration in ms, tokens, sequences in the batch at its beginning (0 where
    nobody knows).
    Texts are None unless its tenant let them be kept, and once their time is over."""

    row: RequestRow
    params: dict[str, Any]
    spans: list[list[Any]]
    prompt_text: str | None
    output_text: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestPage:
    """Some rows of a list, and what to ask for the next ones with; None where there are no more."""

    rows: tuple[RequestRow, ...]
    next_cursor: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A request that ran at the same time as another, and for how many seconds both did."""

    row: RequestRow
    overlap_seconds: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FilterChoices:
    """What the latest requests have in each field, in alphabetical order."""

    pools: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    tenants: tuple[str, ...] = ()
    key_prefixes: tuple[str, ...] = ()
    endpoints: tuple[str, ...] = ()
    outcomes: tuple[str, ...] = ()
    codes: tuple[str, ...] = ()
