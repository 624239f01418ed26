"""A sequence's own account of its time in the engine: what a waterfall is drawn from."""

from __future__ import annotations

from serving.contracts.messages import Span, SpanKind

_MOST_SPANS = 64
_FIRST_RUN_TOKENS = 64
"""A run of decode steps is cut so often, which shows where it was slow; twice as rarely each time that there are too
many."""


class SpanLog:
    """Owns the spans of one sequence; on the engine's thread. Times are seconds of the clock that the scheduler is
    given.

    A decode step costs one comparison, of its end with `run_until`; the run that goes on is known by where it began.
    """

    __slots__ = ("_open", "_run_tokens", "_spans", "run_until")

    def __init__(self) -> None:
        self.run_until = 0
        """The context's length beyond which the next decode step begins a run."""
        self._spans: list[tuple[SpanKind, float, float, int, int]] = []  # kind, beginning, end, tokens, batch
        self._open: tuple[SpanKind, float, int, int] | None = None  # kind, beginning, position, batch
        self._run_tokens = _FIRST_RUN_TOKENS

    def add_prefill(self, began: float, ended: float, *, num_tokens: int, batch_size: int) -> None:
        """A chunk was computed in a step that lasted from `began` to `ended`."""
        self._close(began, 0)
        self._add("prefill", began, ended, num_tokens, batch_size)

    def begin_run(self, began: float, *, position: int, batch_size: int) -> None:
        """A decode step that began then computes `position`: a run goes on from there, and the one before is over."""
        self._close(began, position)
        self._open = ("decode", began, position, batch_size)
        self.run_until = position + self._run_tokens

    def note_preempted(self, now: float, *, position: int, batch_size: int) -> None:
        """It gave way, `position` being the next to be computed: it waits until it is scheduled again."""
        self._close(now, position)
        self._open = ("preempted", now, 0, batch_size)

    def told(self, now: float, *, position: int, since: float) -> tuple[Span, ...]:
        """All spans up to `now`, with offsets from `since`, `position` being the next to be computed. Mutates
        nothing."""
        spans = self._spans if self._open is None else [*self._spans, _closed(self._open, now, position)]
        return tuple(
            [
                Span(kind, _ms(began - since), _ms(ended - began), num_tokens, batch_size)
                for kind, began, ended, num_tokens, batch_size in spans
            ]
        )

    def _close(self, now: float, position: int) -> None:
        if self._open is None:
            return
        self._add(*_closed(self._open, now, position))
        self._open = None
        self.run_until = 0

    def _add(self, kind: SpanKind, began: float, ended: float, num_tokens: int, batch_size: int) -> None:
        self._spans.append((kind, began, ended, num_tokens, batch_size))
        if len(self._spans) >= _MOST_SPANS:  # one more may be open
            self._run_tokens *= 2
            self._spans = _merged(self._spans)


def _closed(
    opened: tuple[SpanKind, float, int, int], now: float, position: int
) -> tuple[SpanKind, float, float, int, int]:
    kind, began, first, batch_size = opened
    return kind, began, now, position - first if kind == "decode" else 0, batch_size


def _merged(
    spans: list[tuple[SpanKind, float, float, int, int]],
) -> list[tuple[SpanKind, float, float, int, int]]:
    """Neighbours of one kind joined two by two; where there are none, all but the first half of what is allowed and
    the newest are left out."""
    merged: list[tuple[SpanKind, float, float, int, int]] = []
    may_join = False
    for span in spans:
        if may_join and merged[-1][0] == span[0]:
            kind, began, _, num_tokens, batch_size = merged[-1]
            merged[-1] = kind, began, span[2], num_tokens + span[3], batch_size
            may_join = False
        else:
            merged.append(span)
            may_join = True
    return merged if len(merged) < _MOST_SPANS else [*merged[: _MOST_SPANS // 2], merged[-1]]


def _ms(seconds: float) -> float:
    return round(max(0.0, seconds) * 1000, 2)
