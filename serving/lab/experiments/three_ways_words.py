"""What the ways of batching cost, in sentences made of their figures. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from serving.lab.experiments.sweep_points import Estimate
from serving.lab.experiments.three_ways_figures import MEASURES, Way, is_real

_TOLD = ("ttft_p50", "ttft_p95", "e2e_p50", "throughput", "goodput")
_TITLES = {"static": "Static batching", "windowed": "The window", "continuous": "Continuous batching"}


def conclusions(ways: Sequence[Way]) -> tuple[str, ...]:
    """A sentence or two for each way that is not the continuous one; only differences that are real are told."""
    continuous = next((way for way in ways if way.name == "continuous"), None)
    if continuous is None:
        return ()
    return tuple(" ".join(_sentences(way, continuous)) for way in ways if way.name != "continuous")


def _sentences(way: Way, continuous: Way) -> Iterator[str]:
    told = [words for name in _TOLD if (words := _told(way, continuous, name))]
    title = _TITLES[way.name]
    yield (
        f"{title} against continuous batching, on the same requests: {'; '.join(told)}."
        if told
        else f"{title} made no difference to the first token or to throughput that is larger than the noise."
    )
    waste = []
    if way.idle_share:
        waste.append(f"{way.idle_share:.0%} of its places stood empty while their batch ran to its end")
    if way.padded_share:
        waste.append(f"a rectangular batch would have computed {way.padded_share:.0%} of its prompt tokens for nothing")
    if waste:
        yield f"{' and '.join(waste).capitalize()}."


def _told(way: Way, continuous: Way, name: str) -> str:
    ratio, own, base = way.against.get(name), way.figures.get(name), continuous.figures.get(name)
    if ratio is None or own is None or base is None or not is_real(ratio):
        return ""
    measure = MEASURES[name]
    return f"{measure.title} {_in_words(ratio)} ({_number(own.mean)} instead of {_number(base.mean)} {measure.unit})"


def _in_words(ratio: Estimate) -> str:
    mean = ratio.mean
    if mean >= 1.5:
        return f"{mean:.1f} times as much"
    return f"{abs(mean - 1):.0%} {'more' if mean > 1 else 'less'}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.3g}"
