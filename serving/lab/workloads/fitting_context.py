"""Making a workload fit a model: no prompt and answer together longer than its context."""

from __future__ import annotations

import itertools

import msgspec

from serving.contracts.errors import InvalidValue
from serving.lab.workloads.arrivals import Trace, TraceRequest
from serving.lab.workloads.distributions import Fixed, Histogram, Lengths, LogNormal, Uniform
from serving.lab.workloads.drawing import share_above
from serving.lab.workloads.workload import RequestClass, Workload

_LEAST_CONTEXT = 8
_SMALLEST_TOLD = 0.001


def fitted_to(workload: Workload, *, max_context_tokens: int) -> Workload:
    """The workload with lengths that fit a model with so long a context: answers are cut at a quarter of it, or where
    the longest prompt leaves more room at that, and prompts at what is left. What fits stays as it is. Raises
    `InvalidValue` for a context below 8 tokens."""
    if max_context_tokens < _LEAST_CONTEXT:
        raise InvalidValue("max_context_tokens", max_context_tokens, f"at least {_LEAST_CONTEXT}")
    if isinstance(workload.arrivals, Trace):
        requests = tuple(_fit_traced(each, max_context_tokens) for each in workload.arrivals.requests)
        workload = msgspec.structs.replace(workload, arrivals=Trace(requests=requests, speed=workload.arrivals.speed))
    return msgspec.structs.replace(
        workload, classes=tuple(_fit_class(each, max_context_tokens) for each in workload.classes)
    )


def clippings(workload: Workload, *, max_context_tokens: int) -> tuple[str, ...]:
    """What `fitted_to` cuts, in a sentence a class or trace; nothing where that is less than one in a thousand."""
    told: list[str] = []
    if isinstance(workload.arrivals, Trace):
        requests = workload.arrivals.requests
        num_cut = sum(each is not _fit_traced(each, max_context_tokens) for each in requests)
        if num_cut:
            told.append(f"{num_cut:,} of {len(requests):,} traced requests are cut to {max_context_tokens:,} tokens")
        return tuple(told)
    for each in workload.classes:
        prompt, output = _limits(longest(each.prompt_tokens), longest(each.output_tokens), max_context_tokens)
        for what, lengths, limit in (("prompts", each.prompt_tokens, prompt), ("answers", each.output_tokens, output)):
            share = share_above(lengths, limit)
            if share >= _SMALLEST_TOLD:
                told.append(f"{share:.1%} of the {what} of class {each.name} are cut to {limit:,} tokens")
    return tuple(told)


def longest(lengths: Lengths) -> int:
    """The longest length that the distribution gives."""
    match lengths:
        case Fixed(tokens):
            return tokens
        case Uniform(_, high) | LogNormal(_, _, _, high):
            return high
        case Histogram(edges, counts):
            return max(edge for edge, count in zip(edges[1:], counts, strict=True) if count) - 1


def _limits(prompt: int, output: int, context: int) -> tuple[int, int]:
    """The longest prompt and answer that may be."""
    longest_output = min(output, max(context // 4, context - prompt))
    return min(prompt, context - longest_output), longest_output


def _fit_class(request_class: RequestClass, context: int) -> RequestClass:
    prompt, output = _limits(longest(request_class.prompt_tokens), longest(request_class.output_tokens), context)
    return msgspec.structs.replace(
        request_class,
        prompt_tokens=_cut(request_class.prompt_tokens, prompt),
        output_tokens=_cut(request_class.output_tokens, output),
    )


def _fit_traced(request: TraceRequest, context: int) -> TraceRequest:
    prompt, output = _limits(request.prompt_tokens, request.output_tokens, context)
    if (prompt, output) == (request.prompt_tokens, request.output_tokens):
        return request
    return msgspec.structs.replace(request, prompt_tokens=prompt, output_tokens=output)


def _cut(lengths: Lengths, limit: int) -> Lengths:
    """The distribution with what is above `limit` put there."""
    if longest(lengths) <= limit:
        return lengths
    match lengths:
        case Fixed():
            return Fixed(limit)
        case Uniform(low, _):
            return _cut_uniform(low, lengths.high, limit)
        case LogNormal(median, sigma, low, _):
            return LogNormal(median=median, sigma=sigma, low=min(low, limit), high=limit)
        case Histogram():
            return _cut_histogram(lengths, limit)


def _cut_uniform(low: int, high: int, limit: int) -> Lengths:
    if low >= limit:
        return Fixed(limit)
    return Histogram(edges=(low, limit, limit + 1), counts=(limit - low, high - limit + 1))


def _cut_histogram(histogram: Histogram, limit: int) -> Lengths:
    """Bins below the limit, and one of the limit alone; a bin across it is split evenly."""
    edges: list[int] = []
    counts: list[float] = []
    num_at_limit = 0.0
    for (low, high), count in zip(itertools.pairwise(histogram.edges), histogram.counts, strict=True):
        below = count * max(0, min(high, limit) - low) / (high - low)
        num_at_limit += count - below
        if low < limit:
            edges.append(low)
            counts.append(below)
    if not any(counts):
        return Fixed(limit)
    # Whole counts, fine enough for a bin that was split.
    scale = 1 if all(each == int(each) for each in counts) else 1000
    return Histogram(
        edges=(*edges, limit, limit + 1),
        counts=(*(round(each * scale) for each in counts), round(num_at_limit * scale)),
    )
