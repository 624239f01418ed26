"""Figures and names of requests as people read them. Pure functions."""

from __future__ import annotations

from serving.telemetry.running import Running

NOTHING = "–"
_SHORT_ID = 14


def seconds_in_words(seconds: float | None) -> str:
    """`0.42 ms`, `12.3 ms`, `1.23 s`, `2 m 05 s`, `1 h 02 m`; `–` for what is not known."""
    if seconds is None:
        return NOTHING
    if seconds <= 0:
        return "0 ms"
    if seconds < 0.9995:
        return f"{_three_digits(seconds * 1000)} ms"
    if seconds < 59.95:
        return f"{_three_digits(seconds)} s"
    whole = round(seconds)
    minutes, rest = divmod(whole, 60)
    return f"{minutes} m {rest:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} m"


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:,.0f}"


def percent(share: float) -> str:
    """A share as a number of percent that fits an attribute: between nothing and all."""
    return f"{100 * max(0.0, min(1.0, share)):.2f}".rstrip("0").rstrip(".")


def short_id(request_id: str) -> str:
    """The beginning of an id, which is enough to tell it from its neighbours."""
    return request_id if len(request_id) <= _SHORT_ID else f"{request_id[:_SHORT_ID]}…"


def key_in_words(prefix: str) -> str:
    """A key by its public part; empty for none."""
    return f"fp-{prefix}-…" if prefix else ""


def endpoint_in_words(endpoint: str, *, is_streamed: bool) -> str:
    """What was asked for, and whether as a stream."""
    return f"{endpoint}, streamed" if is_streamed else endpoint


def running_in_words(running: Running) -> str:
    """How many requests are in flight, and how many of them run."""
    num_shown = len(running.requests)
    num_running = sum(one.is_running for one in running.requests)
    if not running.num_in_flight:
        return "Nothing waits or runs now."
    states = f"{num_running:,} running, {num_shown - num_running:,} waiting"
    if running.num_in_flight > num_shown:
        return f"{running.num_in_flight:,} in flight; the {num_shown:,} oldest are shown: {states}."
    return f"{running.num_in_flight:,} in flight: {states}."
