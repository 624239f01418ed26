"""What `manage.py tunables` says and is told of guardrails and canaries."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from django.core.management.base import CommandError

from serving.contracts.guardrails import GUARDRAIL_METRICS, GuardrailTerms
from serving.contracts.tunables import describe
from serving.telemetry.conditions import METRICS, told
from serving.telemetry.sketches import IntervalSummary
from serving.telemetry.tallies import outcomes_of
from serving.tuning.canary_reading import LEAST_REQUESTS, CanaryReading, CanarySide
from serving.tuning.models import TunablesVersion

_FORM = "METRIC:BOUND[:WINDOW[:WATCH]]"
_INTERVALS = {"ttft_seconds": "TTFT", "itl_seconds": "ITL", "e2e_seconds": "E2E", "queue_time_seconds": "queue time"}


def add_terms(parser: argparse.ArgumentParser) -> None:
    """The options that a change may be stored with."""
    parser.add_argument(
        "--guardrail",
        metavar=_FORM,
        help="take the change back by itself where METRIC is above BOUND for WINDOW seconds (60) within WATCH seconds"
        f" (600); METRIC is one of {', '.join(GUARDRAIL_METRICS)}: a p95 in ms, a ratio from 0 to 1",
    )
    parser.add_argument(
        "--canary",
        nargs="?",
        const="",
        metavar="ENGINE",
        help="let one engine try the change, the one of the id ENGINE or the first by name, until promote or withdraw",
    )


def read_terms(options: Mapping[str, Any]) -> dict[str, Any]:
    """The same as `services.change` takes it. Raises `CommandError` for a guardrail that is not of its form."""
    guardrail, canary = options["guardrail"], options["canary"]
    return {
        "guardrail": None if guardrail is None else _read_guardrail(guardrail),
        "canary": canary is not None,
        "canary_engine": canary or None,
    }


def read_assignment(text: str) -> tuple[str, Any]:
    """A tunable and its value from `NAME=VALUE`; raises `CommandError` for what is not of that form."""
    name, sign, value = text.partition("=")
    if not sign:
        raise CommandError(f"{text!r} is not of the form NAME=VALUE")
    if any(spec.name == name and spec.kind == "name" for spec in describe()):
        return name, value  # a pool may be called 1 or null
    try:
        return name, msgspec.json.decode(value)
    except msgspec.DecodeError:
        return name, value


def terms_in_words(version: TunablesVersion) -> Iterator[str]:
    """What it was stored with, a line each."""
    canary, guardrail = getattr(version, "canary", None), getattr(version, "guardrail", None)
    if canary is not None:
        yield f"engine {canary.engine_id} tries it: see `tunables canary`, then `tunables promote` or `withdraw`"
    if guardrail is not None:
        metric = METRICS[guardrail.metric]
        where = "" if canary is None else f" on {canary.engine_id}"
        bound = told(guardrail.bound, metric.unit)
        yield f"it goes back where {metric.title}{where} is above {bound} for {guardrail.window_seconds:g} s"


def canary_in_words(reading: CanaryReading | None) -> Iterator[str]:
    """How a version does that one engine tries, as a table: that engine beside all others."""
    if reading is None:
        yield "no version is being tried"
        return
    yield f"version {reading.number} is tried on {reading.engine_id} since {reading.started_at:%Y-%m-%d %H:%M:%S} UTC"
    if reading.is_gone:
        yield "that engine does not live"
    if reading.seconds is None:
        yield "no monitor tells how its requests do"
    else:
        yield f"{'last ' + str(reading.seconds) + ' s':<16} {'canary':>24} {'other engines':>24}"
        for name, title in _INTERVALS.items():
            for percent in (50, 95, 99):
                yield _row(f"{title} p{percent}", *(_percentile(side, name, percent) for side in _sides(reading)))
        yield _row("requests", *(_requests(side) for side in _sides(reading)))
    yield _row("mean step", *(_step(side) for side in _sides(reading)))
    yield _row("tokens/s, each", *(f"{side.work.generated_tokens_per_second:.1f}" for side in _sides(reading)))
    yield _row("preemptions", *(str(side.work.num_preemptions) for side in _sides(reading)))
    yield f"of fewer than {LEAST_REQUESTS} requests on a side nothing can be told"


def _sides(reading: CanaryReading) -> tuple[CanarySide, CanarySide]:
    return reading.tried, reading.others


def _row(title: str, *cells: str) -> str:
    return f"{title:<16}" + "".join(f" {cell:>24}" for cell in cells)


def _percentile(side: CanarySide, name: str, percent: int) -> str:
    summary: IntervalSummary = getattr(side.share.intervals, name)
    seconds = getattr(summary, f"p{percent}")
    return "–" if seconds is None else f"{told(1000 * seconds, 'ms')} of {summary.count}"


def _requests(side: CanarySide) -> str:
    ended = outcomes_of(side.share.ended)
    return f"{ended['finished']} finished, {ended['failed']} failed"


def _step(side: CanarySide) -> str:
    return "–" if side.work.step_ms is None else told(side.work.step_ms, "ms")


def _read_guardrail(text: str) -> GuardrailTerms:
    metric, *numbers = text.split(":")
    names = ("bound", "window_seconds", "watch_seconds")
    if not 1 <= len(numbers) <= len(names):
        raise CommandError(f"--guardrail {text!r} is not of the form {_FORM}")
    values = {name: _number(name, number) for name, number in zip(names, numbers, strict=False)}
    return GuardrailTerms(metric=metric, **values)


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise CommandError(f"guardrail {name.removesuffix('_seconds')} must be a number, not {text!r}") from None
