"""What the points of a sweep tell: when to go no further, where the knee is, and what is best. Pure functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from serving.lab.experiments.sweep_points import Estimate, Point, is_less

LEAST_POINTS_OF_KNEE: Final = 4
_LEAST_DISTANCE: Final = 0.1
"""A point that is nearer to the chord than this share of the diagram is no knee."""


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """What a leg of a sweep came to: the `index` of the point that is proposed (None: none is), and why. `is_change`
    says that its value is another than the one in force."""

    index: int | None
    is_change: bool
    reason: str


def why_stop(points: Sequence[Point], *, num_beyond: int, is_load: bool) -> str | None:
    """Why no further point is to be played after these, in words; None: go on.

    The SLO broke at the last `num_beyond` + 1 points. That counts once it was kept before, or where the load itself is
    swept; otherwise the conservative end may be what breaks it (one place in the batch makes everybody wait), and the
    sweep goes on as long as the use of the SLO falls from point to point.
    """
    last = points[-(num_beyond + 1) :]
    if len(last) <= num_beyond or any(point.keeps_slo for point in last):
        return None
    first = last[0].value
    if is_load or any(point.keeps_slo for point in points):
        return f"the SLO broke at {first}" + _beyond(num_beyond)
    if len(points) > len(last) and all(_is_worse(points[-step], points[-step - 1]) for step in range(1, len(last) + 1)):
        return f"the SLO was kept nowhere, and from {points[-len(last) - 1].value} on it got worse"
    return None


def _beyond(num: int) -> str:
    return "" if num == 0 else f", and {num} {'point' if num == 1 else 'points'} beyond it shows the knee"


def _is_worse(point: Point, before: Point) -> bool:
    """By both measures that may break: a point at which nobody was served has no percentile."""
    if point.slo_use is None or before.slo_use is None:
        return (point.slo_met_ratio or 0) <= (before.slo_met_ratio or 0)
    return point.slo_use.mean >= before.slo_use.mean


def find_knee(points: Sequence[Point], latency: str) -> int | None:
    """The index of the point behind which throughput costs more and more of a latency; None where there is none.

    Satopää et al. 2011, "Finding a 'Kneedle' in a Haystack", section III, for few and noisy points: throughput (output
    tokens a second) and latency are normalised to the unit square, and the knee is where throughput is furthest above
    latency, that is, furthest from the chord between the corners. Nothing is smoothed, as there are few points. It must
    be an inner point, a tenth of the diagram from the chord, and further from it than its own confidence intervals
    reach; a throughput that falls again behind its maximum does no harm.
    """
    known = [(index, point) for index, point in enumerate(points) if latency in point.latencies]
    if len(known) < LEAST_POINTS_OF_KNEE:
        return None
    throughputs = [point.output_tokens_per_second for _, point in known]
    latencies = [point.latencies[latency] for _, point in known]
    if not _spreads(throughputs) or not _spreads(latencies):
        return None
    distances = [x - y for x, y in zip(_normalised(throughputs), _normalised(latencies), strict=True)]
    best = max(range(len(known)), key=lambda place: distances[place])
    noise = throughputs[best].half_width / _span(throughputs) + latencies[best].half_width / _span(latencies)
    if best in (0, len(known) - 1) or distances[best] < max(_LEAST_DISTANCE, noise):
        return None
    return known[best][0]


def choose(points: Sequence[Point], *, margin: float, in_force: Any, has_slo: bool) -> Proposal:
    """The best point within the SLO with `margin` of it to spare, never just the largest throughput.

    Best is the largest goodput (without an SLO none is proposed: then the largest throughput would always win). Points
    that are not worse by more than the noise are as good: among them the value in force stays, otherwise the most
    conservative is taken, which is the first.
    """
    if not has_slo:
        return _none("the workload has no SLO: there is nothing that a point could be best within")
    if not points:
        return _none("no point was played to its end")
    within = [index for index, point in enumerate(points) if _keeps(point, margin)]
    if not within:
        return _none(_why_none(points, margin))
    best = max(within, key=lambda index: (points[index].goodput_per_second.mean, -index))
    equals = [
        index for index in within if not is_less(points[index].goodput_per_second, points[best].goodput_per_second)
    ]
    staying = next((index for index in equals if points[index].value == in_force), None)
    index = equals[0] if staying is None else staying
    return Proposal(
        index=index,
        is_change=points[index].value != in_force,
        reason=_reason(points, index, best=best, num_equals=len(equals), margin=margin, stays=staying is not None),
    )


def three_best(points: Sequence[Point], *, margin: float, in_force: Any) -> tuple[Any, ...]:
    """The values worth checking on the engines, the value in force among them where it was simulated: first those
    within the SLO by goodput, then those that use least of it."""
    order = sorted(
        range(len(points)),
        key=lambda index: (
            not _keeps(points[index], margin),
            -points[index].goodput_per_second.mean if _keeps(points[index], margin) else _use(points[index]),
            index,
        ),
    )
    chosen = [points[index].value for index in order[:3]]
    if any(point.value == in_force for point in points) and in_force not in chosen:
        chosen[-1] = in_force
    return tuple(point.value for point in points if point.value in chosen)


def axis_of(points: Sequence[Point]) -> str:
    """The latency that is drawn: of the SLO, the one that uses most of it where it does so most; otherwise the TTFT of
    all."""
    bound = [point for point in points if point.binding and point.slo_use is not None]
    tightest = max(bound, key=lambda point: point.slo_use.mean if point.slo_use else 0.0, default=None)
    return "total ttft" if tightest is None else tightest.binding


def _keeps(point: Point, margin: float) -> bool:
    return point.keeps_slo and point.slo_use is not None and point.slo_use.mean <= 1 - margin


def _use(point: Point) -> float:
    return float("inf") if point.slo_use is None else point.slo_use.mean


def _none(reason: str) -> Proposal:
    return Proposal(index=None, is_change=False, reason=reason)


def _why_none(points: Sequence[Point], margin: float) -> str:
    if any(point.keeps_slo for point in points):
        return f"no point keeps the SLO with {100 * margin:.0f} % of it to spare"
    best = min(points, key=_use)
    if best.slo_use is None:
        return "no point keeps the SLO"
    return (
        f"no point keeps the SLO: at best, at {best.value}, {best.binding} p95 is {100 * best.slo_use.mean:.0f} % of it"
    )


def _reason(points: Sequence[Point], index: int, *, best: int, num_equals: int, margin: float, stays: bool) -> str:
    point = points[index]
    assert point.slo_use is not None, "a point within the SLO uses some of it"
    said = (
        f"{point.goodput_per_second.mean:.2f} requests/s within the SLO, of which {point.binding} p95 uses "
        f"{100 * point.slo_use.mean:.0f} % (at most {100 * (1 - margin):.0f} % is allowed)"
    )
    if stays:
        compared = "no other value is better by more than the noise" if num_equals > 1 or index == best else ""
        said = f"the value in force stays: {said}; {compared or 'nothing is better'}"
    elif num_equals > 1:
        said += f"; of {num_equals} values that differ by no more than the noise, the most conservative"
    fastest = max(points, key=lambda each: each.output_tokens_per_second.mean)
    if not _keeps(fastest, margin) and fastest.value != point.value:
        said += f"; {fastest.value} has the largest throughput, but does not keep the SLO with that margin"
    return said


def _span(estimates: Sequence[Estimate]) -> float:
    return max(each.mean for each in estimates) - min(each.mean for each in estimates)


def _spreads(estimates: Sequence[Estimate]) -> bool:
    """Whether the largest differs from the smallest by more than the noise."""
    ordered = sorted(estimates, key=lambda each: each.mean)
    return _span(estimates) > 0 and is_less(ordered[0], ordered[-1])


def _normalised(estimates: Sequence[Estimate]) -> list[float]:
    least, span = min(each.mean for each in estimates), _span(estimates)
    return [(each.mean - least) / span for each in estimates]
