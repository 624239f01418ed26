"""When requests come. Rates are in requests a second, times in seconds from the beginning."""

from __future__ import annotations

import msgspec


class Constant(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="constant"):
    """One every 1/rate seconds."""

    rate: float


class Poisson(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="poisson"):
    """Each independent of all others: exponential gaps."""

    rate: float


class Gamma(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="gamma"):
    """Gamma-distributed gaps, whose coefficient of variation is `cv`: above 1 they come in bursts, below 1 more evenly
    than at random, at 1 as `Poisson`."""

    rate: float
    cv: float


class ClosedLoop(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="closed_loop"):
    """`clients` that each send their next request `think_seconds` after their last answer's end."""

    clients: int
    think_seconds: float = 0.0


class Ramp(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="ramp"):
    """Poisson, at a rate that moves evenly from one to another over the whole duration."""

    start_rate: float
    end_rate: float


class Steps(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="steps"):
    """Poisson, at each of the rates in turn, for equal parts of the duration."""

    rates: tuple[float, ...]


class TraceRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """One request of a trace: when, how long, and which class's manners it has (empty: the first's)."""

    offset_seconds: float
    prompt_tokens: int
    output_tokens: int
    request_class: str = ""


class Trace(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="trace"):
    """What came once comes again, `speed` times as fast. Lengths are the trace's own, not those of its classes."""

    requests: tuple[TraceRequest, ...]
    speed: float = 1.0


Arrivals = Constant | Poisson | Gamma | ClosedLoop | Ramp | Steps | Trace
