"""One request's time as a picture: a lane for each thing that can happen to it, drawn to scale. Pure functions.

The engine tells of a sequence in spans, which are stored as they count from the request's arrival. Without spans (a
request that an engine never had, or of which none told) there is what the gateway knows: when it was first scheduled,
and when its first token was sent.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from dashboard.requests_words import percent, seconds_in_words
from serving.telemetry.request_rows import RequestRow

LANES = ("waiting", "prefill", "decode", "preempted")
_KINDS = {"prefill": "prefill", "decode": "decode", "preempted": "preempted"}
_MOST_TICKS = 6
_MOST_SPANS = 200
_LEAST_WIDTH = 0.002
"""Of the whole: what is shorter would not be seen."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Something that took a while: its place in time among the others, its lane, where it stands in percent of the
    whole, and what is to be said of it.
    `tokens` and `batch_size` are empty where they mean nothing."""

    index: int
    kind: str
    left: str
    width: str
    starts: str
    duration: str
    tokens: str
    batch_size: str

    @property
    def words(self) -> str:
        """All of it in one sentence."""
        said = [f"{self.kind.capitalize()} from {self.starts} for {self.duration}"]
        if self.tokens:
            said.append(f"{self.tokens} {'token' if self.tokens == '1' else 'tokens'}")
        if self.batch_size:
            said.append(f"{self.batch_size} in the batch")
        return ", ".join(said)


@dataclasses.dataclass(frozen=True, slots=True)
class Mark:
    """A moment on the scale, in percent of the whole. `is_late` where its word fits only before it."""

    left: str
    words: str
    is_late: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Lane:
    """All segments of a kind. `total` is how long they took together, empty where there is none."""

    kind: str
    segments: tuple[Segment, ...]
    total: str


@dataclasses.dataclass(frozen=True, slots=True)
class Waterfall:
    """The picture: its lanes, the scale, the moments, and the segments in the order of time. `is_by_gateway` where no
    engine has told of it."""

    lanes: tuple[Lane, ...]
    ticks: tuple[Mark, ...]
    marks: tuple[Mark, ...]
    segments: tuple[Segment, ...]
    is_by_gateway: bool


@dataclasses.dataclass(frozen=True, slots=True)
class _Span:
    kind: str
    start: float
    seconds: float
    tokens: int = 0
    batch_size: int = 0


def present_waterfall(row: RequestRow, spans: Sequence[Any]) -> Waterfall:
    """The picture of a request that ended. Spans that are none are left out."""
    told = _told(spans)
    known = [*_waiting(row, told), *(told or _by_gateway(row))]
    whole = max([row.e2e_seconds, *(span.start + span.seconds for span in known)]) or 1e-3
    in_time = sorted(known, key=lambda span: span.start)
    pairs = [(span, _segment(index, span, whole)) for index, span in enumerate(in_time)]
    return Waterfall(
        lanes=tuple(_lane(kind, pairs) for kind in LANES if kind != "preempted" or any(s.kind == kind for s in known)),
        ticks=tuple(Mark(percent(at / whole), seconds_in_words(at)) for at in _ticks(whole)),
        marks=tuple(_marks(row, whole)),
        segments=tuple(segment for _, segment in pairs),
        is_by_gateway=not told,
    )


def _told(spans: Sequence[Any]) -> list[_Span]:
    """The engine's spans, in seconds since the request's arrival."""
    return [span for raw in spans[:_MOST_SPANS] if (span := _read(raw)) is not None]


def _read(raw: Any) -> _Span | None:
    try:
        kind, offset_ms, duration_ms, tokens, batch_size = raw
        start, seconds = max(0.0, offset_ms / 1000), max(0.0, duration_ms / 1000)
        span = _Span(_KINDS[kind], start, seconds, int(tokens), int(batch_size))
    except (TypeError, ValueError, KeyError):
        return None
    return span if math.isfinite(start) and math.isfinite(seconds) else None


def _waiting(row: RequestRow, told: Sequence[_Span]) -> list[_Span]:
    until = row.queue_seconds
    if until is None:
        until = row.e2e_seconds if not told and not row.ttft_seconds else min((s.start for s in told), default=0.0)
    return [_Span("waiting", 0.0, until)] if until > 0 else []


def _by_gateway(row: RequestRow) -> list[_Span]:
    if row.ttft_seconds is None:
        return []
    began = min(row.queue_seconds or 0.0, row.ttft_seconds)
    return [
        _Span("prefill", began, row.ttft_seconds - began, row.prompt_tokens - row.cached_tokens),
        _Span("decode", row.ttft_seconds, max(0.0, row.e2e_seconds - row.ttft_seconds), row.completion_tokens),
    ]


def _segment(index: int, span: _Span, whole: float) -> Segment:
    share = max(span.seconds / whole, _LEAST_WIDTH)
    has_tokens = span.kind in ("prefill", "decode")
    return Segment(
        index=index,
        kind=span.kind,
        left=percent(min(span.start / whole, 1 - share)),
        width=percent(share),
        starts=seconds_in_words(span.start),
        duration=seconds_in_words(span.seconds),
        tokens=f"{span.tokens:,}" if has_tokens else "",
        batch_size=str(span.batch_size) if span.batch_size > 0 else "",
    )


def _lane(kind: str, pairs: Iterable[tuple[_Span, Segment]]) -> Lane:
    mine = [(span, segment) for span, segment in pairs if segment.kind == kind]
    total = seconds_in_words(sum(span.seconds for span, _ in mine)) if mine else ""
    return Lane(kind, tuple(segment for _, segment in mine), total)


def _marks(row: RequestRow, whole: float) -> Iterable[Mark]:
    if row.ttft_seconds is not None:
        at = row.ttft_seconds / whole
        yield Mark(percent(at), f"First token after {seconds_in_words(row.ttft_seconds)}", is_late=at > 0.6)


def _ticks(whole: float) -> list[float]:
    """Round moments of the scale, of which there are few."""
    rough = whole / _MOST_TICKS
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * magnitude for factor in (1, 2, 5, 10) if factor * magnitude >= rough * 0.999)
    return [index * step for index in range(int(whole / step) + 1)]
