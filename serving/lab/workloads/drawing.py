"""The requests that follow from a workload, in the order in which they are due.

Each of a request's properties is drawn from a stream of random numbers of its own, so that a workload that differs in
one of them gives requests that differ in that one alone (common random numbers: Law, "Simulation Modeling and
Analysis", 5th ed., section 11.2).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from serving.lab.workloads.arrivals import (
    Arrivals,
    ClosedLoop,
    Constant,
    Gamma,
    Poisson,
    Ramp,
    Steps,
    Trace,
    TraceRequest,
)
from serving.lab.workloads.distributions import Fixed, Histogram, Lengths, LogNormal, Uniform
from serving.lab.workloads.workload import PlannedRequest, RequestClass, Workload

_CHUNK = 4096
_STREAMS = ("arrivals", "classes", "prompts", "outputs", "prefixes", "manners", "cancellations")

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def plan_requests(workload: Workload) -> Iterator[PlannedRequest]:
    """The workload's requests one after another, the same for the same seed. Those of a closed loop are not due at any
    time, and without `num_requests` they do not end: whoever plays them ends with the duration."""
    seeds = np.random.SeedSequence(workload.seed).spawn(len(_STREAMS))
    streams = {name: np.random.default_rng(seed) for name, seed in zip(_STREAMS, seeds, strict=True)}
    trace = workload.arrivals.requests if isinstance(workload.arrivals, Trace) else ()
    dues = _due_chunks(workload.arrivals, streams["arrivals"], duration=workload.duration_seconds)
    index = 0
    for due in dues:
        chunk = _Chunk(workload.classes, streams)
        for place in range(len(due)):
            if workload.num_requests is not None and index >= workload.num_requests:
                return
            moment = None if np.isnan(due[place]) else float(due[place])
            if moment is not None and workload.duration_seconds is not None and moment >= workload.duration_seconds:
                return
            yield chunk.request(place, index=index, due_seconds=moment, traced=trace[index] if trace else None)
            index += 1


def due_times(arrivals: Arrivals, *, seed: int, duration_seconds: float | None) -> Iterator[float]:
    """When requests are due, as `plan_requests` has it; none for a closed loop."""
    if isinstance(arrivals, ClosedLoop):
        return
    stream = np.random.default_rng(np.random.SeedSequence(seed).spawn(len(_STREAMS))[0])
    for chunk in _due_chunks(arrivals, stream, duration=duration_seconds):
        yield from chunk.tolist()


def lengths_at(lengths: Lengths, uniform: Floats, normal: Floats) -> Ints:
    """A length for each pair of a uniform (0 to 1) and a standard normal number: `[count]` whole numbers of tokens, 1
    at least."""
    match lengths:
        case Fixed(tokens):
            return np.full(len(uniform), tokens, dtype=np.int64)
        case Uniform(low, high):
            return low + np.floor(uniform * (high - low + 1)).astype(np.int64)
        case LogNormal(median, sigma, low, high):
            drawn: Floats = np.rint(median * np.exp(sigma * normal))
            return drawn.clip(low, high).astype(np.int64)
        case Histogram(edges, counts):
            rising = np.concatenate(([0.0], np.cumsum(counts, dtype=np.float64)))
            found: Floats = np.floor(np.interp(uniform * rising[-1], rising, np.array(edges, dtype=np.float64)))
            return found.clip(1, edges[-1] - 1).astype(np.int64)


def mean_length(lengths: Lengths) -> float:
    """The mean in tokens: exact, but for a lognormal distribution, of which 20,000 evenly spread values are taken."""
    uniform = (np.arange(20_000) + 0.5) / 20_000
    normal = _normal_quantiles(uniform) if isinstance(lengths, LogNormal) else uniform
    match lengths:
        case Fixed(tokens):
            return float(tokens)
        case Uniform(low, high):
            return (low + high) / 2
        case Histogram(edges, counts):
            middles = [(low + high - 1) / 2 for low, high in itertools.pairwise(edges)]
            return float(np.average(middles, weights=counts))
        case LogNormal():
            return float(lengths_at(lengths, uniform, normal).mean())


def quantiles(lengths: Lengths, shares: Floats) -> Ints:
    """The lengths below which the given shares of all lie: `[count]` whole numbers of tokens."""
    normal = _normal_quantiles(shares) if isinstance(lengths, LogNormal) else shares
    return lengths_at(lengths, shares, normal)


def share_above(lengths: Lengths, limit: int) -> float:
    """The share of lengths above a limit in tokens."""
    match lengths:
        case Fixed(tokens):
            return float(tokens > limit)
        case Uniform(low, high):
            return min(1.0, max(0.0, (high - limit) / (high - low + 1)))
        case LogNormal(median, sigma, low, high):
            if limit >= high or limit < low:
                return float(limit < low)
            if sigma == 0:
                return float(np.rint(median) > limit)
            return 1 - NormalDist().cdf(math.log((limit + 0.5) / median) / sigma)
        case Histogram(edges, counts):
            rising = np.concatenate(([0.0], np.cumsum(counts, dtype=np.float64)))
            return float(1 - np.interp(limit + 1, edges, rising) / rising[-1])


def _normal_quantiles(shares: Floats) -> Floats:
    inverse = NormalDist().inv_cdf
    return np.array([inverse(min(1 - 1e-12, max(1e-12, float(share)))) for share in shares])


class _Chunk:
    """What was drawn for the next requests, whichever classes they turn out to be of."""

    def __init__(self, classes: tuple[RequestClass, ...], streams: dict[str, np.random.Generator]) -> None:
        self._classes = classes
        shares = np.array([each.share for each in classes], dtype=np.float64)
        bounds = np.cumsum(shares / shares.sum())
        chosen = np.searchsorted(bounds, streams["classes"].random(_CHUNK), side="right")
        self._chosen = np.minimum(chosen, len(classes) - 1).tolist()
        numbers = {
            name: (streams[name].random(_CHUNK), streams[name].standard_normal(_CHUNK))
            for name in ("prompts", "outputs")
        }
        self._prompts = [lengths_at(each.prompt_tokens, *numbers["prompts"]).tolist() for each in classes]
        self._outputs = [lengths_at(each.output_tokens, *numbers["outputs"]).tolist() for each in classes]
        self._prefixes = streams["prefixes"].random((2, _CHUNK)).tolist()
        self._manners = streams["manners"].random(_CHUNK).tolist()
        self._cancellations = streams["cancellations"].random((2, _CHUNK)).tolist()

    def request(
        self, place: int, *, index: int, due_seconds: float | None, traced: TraceRequest | None
    ) -> PlannedRequest:
        """The request at a place of the chunk; a traced one has the trace's lengths."""
        number = self._chosen[place]
        if traced is not None:
            number = self._number_of(traced.request_class)
        chosen = self._classes[number]
        num_prompt = self._prompts[number][place] if traced is None else traced.prompt_tokens
        num_output = self._outputs[number][place] if traced is None else traced.output_tokens
        prefix, num_prefix = self._prefix(chosen, place, num_prompt_tokens=num_prompt)
        gives_up = self._cancellations[0][place] < chosen.cancelled_share
        return PlannedRequest(
            index=index,
            due_seconds=due_seconds,
            request_class=chosen.name,
            tenant=chosen.tenant,
            priority=chosen.priority,
            num_prompt_tokens=num_prompt,
            num_output_tokens=num_output,
            prefix=prefix,
            num_prefix_tokens=num_prefix,
            is_streamed=self._manners[place] < chosen.streaming_share,
            cancel_after_tokens=int(self._cancellations[1][place] * num_output) if gives_up else None,
        )

    def _number_of(self, name: str) -> int:
        return next((number for number, each in enumerate(self._classes) if each.name == name), 0)

    def _prefix(self, chosen: RequestClass, place: int, *, num_prompt_tokens: int) -> tuple[int | None, int]:
        prefixes = chosen.prefixes
        if prefixes is None or self._prefixes[0][place] >= prefixes.share or num_prompt_tokens < 2:
            return None, 0
        return int(self._prefixes[1][place] * prefixes.count), min(prefixes.tokens, num_prompt_tokens - 1)


def _due_chunks(arrivals: Arrivals, rng: np.random.Generator, *, duration: float | None) -> Iterator[Floats]:
    """Due times, rising, in chunks of at most `_CHUNK`; not numbers where nothing is due at any time."""
    match arrivals:
        case ClosedLoop():
            yield from itertools.repeat(np.full(_CHUNK, np.nan))
        case Trace(requests, speed):
            offsets = np.array([request.offset_seconds for request in requests]) / speed
            yield from (offsets[start : start + _CHUNK] for start in range(0, len(offsets), _CHUNK))
        case Constant(rate):
            for start in itertools.count(0, _CHUNK):
                yield np.arange(start, start + _CHUNK) / rate
        case Poisson(rate):
            yield from _summed(lambda: rng.standard_exponential(_CHUNK) / rate)
        case Gamma(rate, cv):
            yield from _summed(lambda: rng.gamma(1 / cv**2, cv**2 / rate, _CHUNK))
        case Ramp(start_rate, end_rate):
            assert duration is not None, "a ramp has a duration"
            yield from _ramped(rng, start_rate=start_rate, end_rate=end_rate, duration=duration)
        case Steps(rates):
            assert duration is not None, "steps have a duration"
            yield from _stepped(rng, rates=rates, duration=duration)


def _summed(gaps: Callable[[], Floats]) -> Iterator[Floats]:
    last = 0.0
    while True:
        times = last + np.cumsum(gaps())
        last = float(times[-1])
        yield times


def _ramped(rng: np.random.Generator, *, start_rate: float, end_rate: float, duration: float) -> Iterator[Floats]:
    """A Poisson process of changing rate, by inverting how many are expected until a time (Çinlar 1975, "Introduction
    to Stochastic Processes", section 4.7)."""
    slope = (end_rate - start_rate) / duration
    total = (start_rate + end_rate) / 2 * duration
    for expected in _summed(lambda: rng.standard_exponential(_CHUNK)):
        within = expected[expected < total]
        if slope == 0:
            yield within / start_rate
        else:
            root = np.sqrt(np.maximum(0.0, start_rate**2 + 2 * slope * within))
            # This form loses nothing where the slope is small.
            yield 2 * within / (start_rate + root)
        if len(within) < len(expected):
            return


def _stepped(rng: np.random.Generator, *, rates: tuple[float, ...], duration: float) -> Iterator[Floats]:
    times = np.linspace(0.0, duration, len(rates) + 1)
    expected_by = np.concatenate(([0.0], np.cumsum(np.array(rates) * duration / len(rates))))
    # Where the rate is 0 nothing is expected: of times at which equally many are, the last is taken.
    rises = np.concatenate((np.diff(expected_by) > 0, [True]))
    for expected in _summed(lambda: rng.standard_exponential(_CHUNK)):
        within = expected[expected < expected_by[-1]]
        yield _inverted(within, expected_by, times, rises)
        if len(within) < len(expected):
            return


def _inverted(values: Floats, rising: Floats, times: Floats, rises: npt.NDArray[np.bool_]) -> Floats:
    part = np.searchsorted(rising, values, side="right") - 1
    assert bool(rises[part].all()), "no value lies where nothing rises"
    share = (values - rising[part]) / (rising[part + 1] - rising[part])
    return np.asarray(times[part] + share * (times[part + 1] - times[part]))
