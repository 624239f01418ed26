"""What the pages of requests show, from what was read: pure functions."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dashboard.requests_filter import USUAL_SORT, WINDOWS, Asked
from dashboard.requests_words import NOTHING, endpoint_in_words, key_in_words, percent, seconds_in_words, short_id
from serving.telemetry.request_rows import Beside, FilterChoices, RequestRow, RequestSort
from serving.telemetry.running import RunningRequest

OUTCOMES = ("finished", "aborted", "refused", "failed")
ENDPOINTS = {"chat": "chat", "completion": "completion", "embedding": "embedding", "console": "console"}
_COLUMNS: tuple[tuple[RequestSort, str], ...] = (("queue", "Queue"), ("ttft", "TTFT"), ("itl", "ITL"), ("e2e", "E2E"))
_TERMS = {"queue": "queue_time", "ttft": "ttft", "itl": "itl", "e2e": "e2e"}


@dataclasses.dataclass(frozen=True, slots=True)
class IntervalCell:
    """An interval in words and in seconds, and how much of its column's longest it is, in percent; the last two are
    empty where it is not known."""

    label: str
    words: str
    seconds: str
    width: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LogRow:
    """One request that ended as the list shows it."""

    pk: int
    request_id: str
    short_id: str
    url: str
    arrived_at: datetime.datetime
    tenant: str
    key: str
    pool: str
    model: str
    endpoint: str
    prompt: str
    cached: str
    completion: str
    cells: tuple[IntervalCell, ...]
    outcome: str
    code: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunningRow:
    """One request in flight as the list shows it."""

    request_id: str
    short_id: str
    state: str
    place: str
    tenant: str
    key: str
    pool: str
    endpoint: str
    age: str
    prompt: str
    completion: str


@dataclasses.dataclass(frozen=True, slots=True)
class Chip:
    """A link to another view of the list; whether that is the one that is shown."""

    label: str
    url: str
    is_chosen: bool


@dataclasses.dataclass(frozen=True, slots=True)
class Column:
    """The head of a column that the list can be sorted by. `direction` is what `aria-sort` says, empty where it is not
    sorted by it, `term` its word in the glossary."""

    key: str
    label: str
    url: str
    direction: str
    term: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """One choice of a field."""

    value: str
    label: str
    is_chosen: bool


@dataclasses.dataclass(frozen=True, slots=True)
class BesideRow:
    """A request that ran beside another: where in that one's time it did, in percent of it."""

    row: LogRow
    overlap: str
    left: str
    width: str


def present_rows(rows: Sequence[RequestRow], *, base_url: str, query: str) -> tuple[LogRow, ...]:
    """Rows of the list; intervals on a scale common to a column. `base_url` and `query` lead to a request's page."""
    longest = {key: max((_seconds(row, key) or 0.0 for row in rows), default=0.0) for key, _ in _COLUMNS}
    return tuple(_present_row(row, longest, url=f"{base_url}{row.request_id}/{query}") for row in rows)


def _present_row(row: RequestRow, longest: Mapping[RequestSort, float], *, url: str) -> LogRow:
    return LogRow(
        pk=row.pk,
        request_id=row.request_id,
        short_id=short_id(row.request_id),
        url=url,
        arrived_at=row.arrived_at,
        tenant=row.tenant,
        key=key_in_words(row.key_prefix),
        pool=row.pool,
        model=row.model,
        endpoint=endpoint_in_words(row.endpoint, is_streamed=row.is_streamed),
        prompt=f"{row.prompt_tokens:,}",
        cached=f"{row.cached_tokens:,}" if row.cached_tokens else "",
        completion=f"{row.completion_tokens:,}",
        cells=tuple(_cell(label, _seconds(row, key), longest[key]) for key, label in _COLUMNS),
        outcome=row.outcome,
        code=row.code,
    )


def _seconds(row: RequestRow, key: RequestSort) -> float | None:
    value: float | None = getattr(row, f"{key}_seconds")
    return value


def _cell(label: str, seconds: float | None, longest: float) -> IntervalCell:
    if seconds is None:
        return IntervalCell(label, NOTHING, "", "")
    width = percent(seconds / longest) if longest > 0 else "0"
    return IntervalCell(label, seconds_in_words(seconds), f"{seconds:.6f}", width)


def present_running(requests: Iterable[RunningRequest]) -> tuple[RunningRow, ...]:
    """What is in flight, in the order given."""
    return tuple(
        RunningRow(
            request_id=one.request_id,
            short_id=short_id(one.request_id),
            state="running" if one.is_running else "waiting",
            place="" if one.is_running or one.num_ahead is None else f"{one.num_ahead:,} ahead",
            tenant=one.tenant,
            key=key_in_words(one.key_prefix),
            pool=one.pool,
            endpoint=one.endpoint,
            age=seconds_in_words(one.age_seconds),
            prompt=f"{one.prompt_tokens:,}",
            completion=f"{one.completion_tokens:,}",
        )
        for one in requests
    )


def present_chips(asked: Asked) -> tuple[tuple[Chip, ...], tuple[Chip, ...]]:
    """Links to other stretches of time, and to what an operator looks for most."""
    windows = tuple(
        Chip(f"Last {label}" if name != "all" else label, asked.query(last=name), asked.window == name)
        for name, (label, _) in WINDOWS.items()
    )
    sorts = [
        Chip(f"Slowest {label}", asked.query(sort=key if asked.sort != key else USUAL_SORT), asked.sort == key)
        for key, label in _COLUMNS
    ]
    failed = asked.typed["outcome"] == "failed"
    return windows, (*sorts, Chip("Failed only", asked.query(outcome="" if failed else "failed"), failed))


def present_columns(asked: Asked) -> tuple[Column, ...]:
    """The heads of the columns that the list can be sorted by, the time first."""
    by_time = asked.query(sort="oldest" if asked.sort == "newest" else "newest")
    direction = {"newest": "descending", "oldest": "ascending"}.get(asked.sort, "")
    others = [
        Column(key, label, asked.query(sort=key), "descending" if asked.sort == key else "", _TERMS.get(key, ""))
        for key, label in (("tokens", "Tokens"), *_COLUMNS)
    ]
    return (Column("time", "Time", by_time, direction), *others)


def present_options(asked: Asked, known: FilterChoices) -> dict[str, tuple[Option, ...]]:
    """The choices of each field that has some; what was asked for is one of them, whether the log has it or not."""
    fields: dict[str, Iterable[str]] = {
        "tenant": known.tenants,
        "key": [f"fp-{prefix}" for prefix in known.key_prefixes],
        "pool": known.pools,
        "model": known.models,
        "endpoint": ENDPOINTS,
        "outcome": OUTCOMES,
        "code": known.codes,
    }
    options = {name: _options(values, asked.typed[name]) for name, values in fields.items()}
    windows = [
        Option(name, f"Last {label}" if name != "all" else label, asked.window == name)
        for name, (label, _) in WINDOWS.items()
    ]
    if not asked.window:
        windows.append(Option("", "From and until, below", is_chosen=True))
    return {**options, "last": tuple(windows)}


def _options(values: Iterable[str], chosen: str) -> tuple[Option, ...]:
    known = list(values)
    if chosen and chosen not in known:
        known.insert(0, chosen)
    return tuple(Option(value, value, value == chosen) for value in known)


def present_beside(found: Iterable[Beside], row: RequestRow, *, base_url: str) -> tuple[BesideRow, ...]:
    """What ran beside `row`, and when within its time."""
    whole = max(row.e2e_seconds, 1e-9)
    shown = []
    for beside in found:
        begins = max(0.0, (beside.row.arrived_at - row.arrived_at).total_seconds())
        shown.append(
            BesideRow(
                row=present_rows([beside.row], base_url=base_url, query="")[0],
                overlap=seconds_in_words(beside.overlap_seconds),
                left=percent(begins / whole),
                width=percent(beside.overlap_seconds / whole),
            )
        )
    return tuple(shown)


def csv_row(row: RequestRow) -> tuple[Any, ...]:
    """One request as the table for spreadsheets has it, in the order of `CSV_HEADER`."""
    values = [getattr(row, name) for name in CSV_HEADER]
    return tuple(_csv_value(value) for value in values)


def _csv_value(value: Any) -> Any:
    if isinstance(value, datetime.datetime):
        return value.astimezone(datetime.UTC).isoformat(timespec="milliseconds")
    if isinstance(value, float):
        return f"{value:.6f}"
    return "" if value is None else value


CSV_HEADER = (
    "arrived_at",
    "request_id",
    "tenant",
    "key_prefix",
    "pool",
    "model",
    "endpoint",
    "is_streamed",
    "outcome",
    "code",
    "num_choices",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "queue_seconds",
    "ttft_seconds",
    "itl_seconds",
    "e2e_seconds",
    "num_preemptions",
    "num_attempts",
    "engine",
    "tunables_version",
)
