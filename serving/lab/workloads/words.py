"""A workload's shape in words."""

from __future__ import annotations

import numpy as np

from serving.lab.workloads.arrivals import Arrivals, ClosedLoop, Constant, Gamma, Poisson, Ramp, Steps, Trace
from serving.lab.workloads.distributions import Fixed, Histogram, Lengths, LogNormal, Uniform
from serving.lab.workloads.drawing import quantiles
from serving.lab.workloads.workload import RequestClass, SharedPrefixes, Slo, Workload

_HALF = np.array([0.5])


def arrivals_in_words(arrivals: Arrivals) -> str:
    """How requests come."""
    match arrivals:
        case Constant(rate):
            return f"{rate:g} a second, evenly"
        case Poisson(rate):
            return f"{rate:g} a second, at random (Poisson)"
        case Gamma(rate, cv):
            return f"{rate:g} a second, {'in bursts' if cv > 1 else 'more evenly than at random'} (gamma, cv {cv:g})"
        case ClosedLoop(clients, think_seconds):
            pause = f", {think_seconds:g} s after their last answer" if think_seconds else ", one after another"
            return f"{clients:,} client{'' if clients == 1 else 's'} in a closed loop{pause}"
        case Ramp(start_rate, end_rate):
            return f"from {start_rate:g} to {end_rate:g} a second (ramp, Poisson)"
        case Steps(rates):
            told = ", ".join(f"{rate:g}" for rate in rates[:6]) + (", …" if len(rates) > 6 else "")
            return f"in steps of {told} a second (Poisson)"
        case Trace(requests, speed):
            return f"{len(requests):,} requests as they once came" + (
                "" if speed == 1 else f", {speed:g} times as fast"
            )


def lengths_in_words(lengths: Lengths) -> str:
    """How long they are, in tokens."""
    match lengths:
        case Fixed(tokens):
            return f"{tokens:,}"
        case Uniform(low, high):
            return f"{low:,} to {high:,}"
        case LogNormal(median, sigma, _, _):
            return f"median {median:,.0f} (lognormal, sigma {sigma:.2g})"
        case Histogram(_, counts):
            return f"median {quantiles(lengths, _HALF)[0]:,} (counted, {len(counts)} bins)"


def class_in_words(request_class: RequestClass) -> str:
    """What requests of a class are like."""
    parts = [
        f"prompts {lengths_in_words(request_class.prompt_tokens)}",
        f"answers {lengths_in_words(request_class.output_tokens)} tokens",
    ]
    if request_class.prefixes is not None:
        parts.append(prefixes_in_words(request_class.prefixes))
    if request_class.streaming_share < 1:
        parts.append(f"{request_class.streaming_share:.0%} streamed")
    if request_class.cancelled_share > 0:
        parts.append(f"{request_class.cancelled_share:.0%} cancelled")
    return "; ".join(parts)


def prefixes_in_words(prefixes: SharedPrefixes) -> str:
    """What prompts have in common."""
    texts = "one text" if prefixes.count == 1 else f"one of {prefixes.count:,} texts"
    return f"{prefixes.share:.0%} begin with {texts} of {prefixes.tokens:,} tokens"


def slo_in_words(slo: Slo) -> str:
    """What is asked of a request; empty where nothing is."""
    bounds = (("TTFT", slo.ttft_ms), ("mean ITL", slo.itl_ms), ("E2E", slo.e2e_ms))
    return ", ".join(f"{name} ≤ {bound:,.0f} ms" for name, bound in bounds if bound is not None)


def amount_in_words(workload: Workload) -> str:
    """How much of it there is."""
    parts = []
    if workload.duration_seconds is not None:
        parts.append(f"{workload.duration_seconds:,g} s")
    if workload.num_requests is not None:
        parts.append(f"{workload.num_requests:,} requests")
    amount = " or ".join(parts) or "the whole trace"
    return amount + (f", of which {workload.warm_up_seconds:g} s warm up" if workload.warm_up_seconds else "")
