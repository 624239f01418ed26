"""What a workload must keep to be playable: every bound is named with its field and value."""

from __future__ import annotations

import itertools
import math
import re
from typing import Final

from serving.contracts.errors import InvalidValue
from serving.contracts.messages import MAX_PRIORITY
from serving.contracts.texts import is_storable
from serving.lab.workloads.arrivals import Arrivals, ClosedLoop, Constant, Gamma, Poisson, Ramp, Steps, Trace
from serving.lab.workloads.distributions import MAX_TOKENS, Fixed, Histogram, Lengths, LogNormal, Uniform
from serving.lab.workloads.workload import SCHEMA_VERSION, RequestClass, SharedPrefixes, Slo, Workload

NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
NAME_IN_WORDS: Final = "1 to 64 small letters, digits, '_', '.' or '-', of which the first is a letter or digit"

MAX_CLASSES = 20
MAX_RATE = 10_000.0
MAX_CLIENTS = 10_000
MAX_REQUESTS = 2_000_000
MAX_SECONDS = 7 * 86_400.0
MAX_TRACE_REQUESTS = 200_000
MAX_BINS = 1_000
MAX_RATES = 1_000
MAX_PREFIXES = 100_000
MAX_MS = 86_400_000.0
MAX_SEED = 2**63 - 1
LONGEST_TEXT = 2_000
_MAX_SIGMA = 5.0
_MAX_CV = 100.0
_MAX_SPEED = 1_000.0


def check_workload(workload: Workload) -> None:
    """Raise `InvalidValue`, naming field, value and bound, for a workload that cannot be played."""
    if workload.schema_version != SCHEMA_VERSION:
        raise InvalidValue("schema_version", workload.schema_version, f"{SCHEMA_VERSION}, the only one there is")
    if NAME.fullmatch(workload.name) is None:
        raise InvalidValue("name", workload.name[:80], NAME_IN_WORDS)
    for name in ("about", "source"):
        if not is_storable(getattr(workload, name), longest=LONGEST_TEXT):
            raise InvalidValue(name, "…", f"a text of at most {LONGEST_TEXT} characters, without NUL and API keys")
    _within("seed", workload.seed, low=0, high=MAX_SEED)
    _check_amount(workload)
    _check_arrivals(workload.arrivals, has_duration=workload.duration_seconds is not None)
    if not 1 <= len(workload.classes) <= MAX_CLASSES:
        raise InvalidValue("classes", len(workload.classes), f"1 to {MAX_CLASSES} of them")
    for index, request_class in enumerate(workload.classes):
        _check_class(request_class, f"classes[{index}]")
    names = [each.name for each in workload.classes]
    if len(set(names)) < len(names):
        raise InvalidValue("classes", ", ".join(names), "each name once")
    if not any(each.share > 0 for each in workload.classes):
        raise InvalidValue("classes", "all shares 0", "at least one with a share above 0")
    if isinstance(workload.arrivals, Trace):
        _check_trace_classes(workload.arrivals, names)


def _check_amount(workload: Workload) -> None:
    duration, count = workload.duration_seconds, workload.num_requests
    if duration is not None:
        _within("duration_seconds", duration, low=0.001, high=MAX_SECONDS)
    if count is not None:
        _within("num_requests", count, low=1, high=MAX_REQUESTS)
    if duration is None and count is None and not isinstance(workload.arrivals, Trace):
        raise InvalidValue("duration_seconds", None, "a number of seconds, or num_requests in its place")
    _within("warm_up_seconds", workload.warm_up_seconds, low=0, high=MAX_SECONDS)
    if duration is not None and workload.warm_up_seconds >= duration:
        raise InvalidValue("warm_up_seconds", workload.warm_up_seconds, f"less than duration_seconds, {duration:g}")


def _check_arrivals(arrivals: Arrivals, *, has_duration: bool) -> None:
    match arrivals:
        case Constant(rate) | Poisson(rate):
            _rate("arrivals.rate", rate)
        case Gamma(rate, cv):
            _rate("arrivals.rate", rate)
            _within("arrivals.cv", cv, low=0.01, high=_MAX_CV)
        case ClosedLoop(clients, think_seconds):
            _within("arrivals.clients", clients, low=1, high=MAX_CLIENTS)
            _within("arrivals.think_seconds", think_seconds, low=0, high=86_400)
        case Ramp(start_rate, end_rate):
            _within("arrivals.start_rate", start_rate, low=0, high=MAX_RATE)
            _within("arrivals.end_rate", end_rate, low=0, high=MAX_RATE)
            if start_rate + end_rate <= 0:
                raise InvalidValue("arrivals.end_rate", end_rate, "above 0 where start_rate is 0")
            _needs_duration("a ramp", has_duration=has_duration)
        case Steps(rates):
            _count("arrivals.rates", len(rates), most=MAX_RATES)
            for index, rate in enumerate(rates):
                _within(f"arrivals.rates[{index}]", rate, low=0, high=MAX_RATE)
            if not any(rates):
                raise InvalidValue("arrivals.rates", "all 0", "at least one above 0")
            _needs_duration("steps", has_duration=has_duration)
        case Trace():
            _check_trace(arrivals)


def _check_trace(trace: Trace) -> None:
    _count("arrivals.requests", len(trace.requests), most=MAX_TRACE_REQUESTS)
    _within("arrivals.speed", trace.speed, low=0.001, high=_MAX_SPEED)
    earlier = 0.0
    for index, request in enumerate(trace.requests):
        name = f"arrivals.requests[{index}]"
        _within(f"{name}.offset_seconds", request.offset_seconds, low=0, high=MAX_SECONDS)
        if request.offset_seconds < earlier:
            raise InvalidValue(
                f"{name}.offset_seconds", request.offset_seconds, f"not before the one before, {earlier:g}"
            )
        earlier = request.offset_seconds
        _within(f"{name}.prompt_tokens", request.prompt_tokens, low=1, high=MAX_TOKENS)
        _within(f"{name}.output_tokens", request.output_tokens, low=1, high=MAX_TOKENS)


def _check_trace_classes(trace: Trace, names: list[str]) -> None:
    for index, request in enumerate(trace.requests):
        if request.request_class and request.request_class not in names:
            name = f"arrivals.requests[{index}].request_class"
            raise InvalidValue(name, request.request_class, "empty, or one of " + ", ".join(names))


def _check_class(request_class: RequestClass, name: str) -> None:
    if NAME.fullmatch(request_class.name) is None:
        raise InvalidValue(f"{name}.name", request_class.name[:80], NAME_IN_WORDS)
    if not is_storable(request_class.tenant, longest=100):
        raise InvalidValue(f"{name}.tenant", request_class.tenant[:80], "a tenant's name, or empty")
    _within(f"{name}.share", request_class.share, low=0, high=1e9)
    _within(f"{name}.priority", request_class.priority, low=-MAX_PRIORITY, high=MAX_PRIORITY)
    _within(f"{name}.streaming_share", request_class.streaming_share, low=0, high=1)
    _within(f"{name}.cancelled_share", request_class.cancelled_share, low=0, high=1)
    check_lengths(request_class.prompt_tokens, f"{name}.prompt_tokens")
    check_lengths(request_class.output_tokens, f"{name}.output_tokens")
    if request_class.prefixes is not None:
        _check_prefixes(request_class.prefixes, f"{name}.prefixes")
    _check_slo(request_class.slo, f"{name}.slo")


def _check_prefixes(prefixes: SharedPrefixes, name: str) -> None:
    _within(f"{name}.share", prefixes.share, low=0, high=1)
    _within(f"{name}.tokens", prefixes.tokens, low=1, high=MAX_TOKENS)
    _within(f"{name}.count", prefixes.count, low=1, high=MAX_PREFIXES)


def _check_slo(slo: Slo, name: str) -> None:
    for field in ("ttft_ms", "itl_ms", "e2e_ms"):
        bound = getattr(slo, field)
        if bound is not None:
            _within(f"{name}.{field}", bound, low=0.1, high=MAX_MS)


def check_lengths(lengths: Lengths, name: str) -> None:
    """Raise `InvalidValue` for a distribution that gives no lengths. `name` is the field's."""
    match lengths:
        case Fixed(tokens):
            _within(f"{name}.tokens", tokens, low=1, high=MAX_TOKENS)
        case Uniform(low, high) | LogNormal(_, _, low, high):
            _within(f"{name}.low", low, low=1, high=MAX_TOKENS)
            _within(f"{name}.high", high, low=low, high=MAX_TOKENS)
            if isinstance(lengths, LogNormal):
                _within(f"{name}.median", lengths.median, low=1, high=MAX_TOKENS)
                _within(f"{name}.sigma", lengths.sigma, low=0, high=_MAX_SIGMA)
        case Histogram():
            _check_histogram(lengths, name)


def _check_histogram(histogram: Histogram, name: str) -> None:
    edges, counts = histogram.edges, histogram.counts
    _count(f"{name}.counts", len(counts), most=MAX_BINS)
    if len(edges) != len(counts) + 1:
        raise InvalidValue(f"{name}.edges", f"{len(edges)} edges", f"one more than the {len(counts)} counts")
    for index, edge in enumerate(edges):
        _within(f"{name}.edges[{index}]", edge, low=1, high=MAX_TOKENS + 1)
    for index, (edge, following) in enumerate(itertools.pairwise(edges)):
        if following <= edge:
            raise InvalidValue(f"{name}.edges[{index + 1}]", following, f"above the edge before, {edge}")
    for index, count in enumerate(counts):
        _within(f"{name}.counts[{index}]", count, low=0, high=10**12)
    if not any(counts):
        raise InvalidValue(f"{name}.counts", "all 0", "at least one above 0")


def _needs_duration(what: str, *, has_duration: bool) -> None:
    if not has_duration:
        raise InvalidValue("duration_seconds", None, f"a number of seconds, over which {what} goes")


def _count(name: str, count: int, *, most: int) -> None:
    if not 1 <= count <= most:
        raise InvalidValue(name, f"{count} entries", f"1 to {most} of them")


def _rate(name: str, rate: float) -> None:
    _within(name, rate, low=1e-6, high=MAX_RATE)


def _within(name: str, value: float, *, low: float, high: float) -> None:
    if not math.isfinite(value) or not low <= value <= high:
        raise InvalidValue(name, value, f"a number from {low:.12g} to {high:.12g}")
