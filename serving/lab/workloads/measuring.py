"""A workload measured from the request log. Blocking: async code calls this through `serving.threads.in_thread`.

What was asked for is measured, not what was answered: refused and failed requests arrived too. Answers' lengths are
taken from requests that finished, as those of others were cut short; embeddings are left out.

A class is a tenant's requests of one priority. Where there is but one such group, a class is an endpoint's; where
there are more than 20, the 19 largest are kept and the others become one.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec
import numpy as np

from serving.contracts.errors import InvalidValue
from serving.contracts.tunables import Tunables
from serving.lab.fingerprints import Fingerprint
from serving.lab.workloads.arrivals import Arrivals, Steps, Trace, TraceRequest
from serving.lab.workloads.checking import MAX_CLASSES, MAX_SECONDS, MAX_TRACE_REQUESTS, check_workload
from serving.lab.workloads.distributions import MAX_TOKENS
from serving.lab.workloads.estimating import FittedArrivals, fit_gaps, fit_lengths, rates_over
from serving.lab.workloads.evidence import ClassEvidence, Evidence
from serving.lab.workloads.workload import RequestClass, SharedPrefixes, Slo, Workload
from serving.telemetry.request_shapes import RequestShape, count_shapes, newest_shapes
from serving.tuning.selectors import current_tunables

ArrivalsAs = Literal["fitted", "steps", "trace"]
ARRIVALS_AS: tuple[ArrivalsAs, ...] = ("fitted", "steps", "trace")

_NUM_RATES = 60
_LEAST_RATES = 6
_REQUESTS_A_RATE = 8
"""Fewer in a part of the range, and its rate is mostly chance."""
_NUM_STEPS = 24
_OTHERS = "others"
_FEW = 30
_UNEVEN = 3.0


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """A workload, and what it was measured from."""

    workload: Workload
    evidence: Evidence


def measure_workload(
    *,
    pool: str,
    since: datetime.datetime,
    until: datetime.datetime,
    name: str,
    tenant: str = "",
    arrivals_as: ArrivalsAs = "fitted",
    fingerprint: Fingerprint | None = None,
) -> Measured:
    """The traffic of a pool from `since` until before `until`, of one tenant where it is named; of more than 200,000
    requests the newest so many. `arrivals_as` says what becomes of the moments: a fitted process, 24 steps of rates, or
    an exact trace. `fingerprint` is the pool's as it is now, where it is known.

    Raises `PoolNotFound`, and `InvalidValue` for a range that is none, is longer than 7 days or holds no request.
    """
    tunables = current_tunables(pool).tunables
    _check_range(since, until)
    num_in_range = count_shapes(pool=pool, since=since, until=until, tenant=tenant)
    if not num_in_range:
        whose = f" and tenant {tenant}" if tenant else ""
        raise InvalidValue("since", since.isoformat(), f"earlier: the log has no request of pool {pool}{whose} from it")
    found = newest_shapes(pool=pool, since=since, until=until, tenant=tenant, limit=MAX_TRACE_REQUESTS)
    shapes = list(found)[::-1]
    return _measured(
        shapes,
        tunables,
        name=name,
        arrivals_as=arrivals_as,
        facts={
            "pool": pool,
            "tenant": tenant,
            "since": since,
            "until": until,
            "num_in_range": num_in_range,
            "fingerprint": fingerprint or Fingerprint(),
        },
    )


def _check_range(since: datetime.datetime, until: datetime.datetime) -> None:
    seconds = (until - since).total_seconds()
    if seconds <= 0:
        raise InvalidValue("until", until.isoformat(), f"after since, {since.isoformat()}")
    if seconds > MAX_SECONDS:
        raise InvalidValue("until", until.isoformat(), "at most 7 days after since")


def _measured(
    shapes: Sequence[RequestShape],
    tunables: Tunables,
    *,
    name: str,
    arrivals_as: ArrivalsAs,
    facts: dict[str, Any],
) -> Measured:
    groups = _grouped(shapes)
    fitted = {class_name: _measure_class(group) for class_name, group in groups.items()}
    moments = [(each.arrived_at - shapes[0].arrived_at).total_seconds() for each in shapes]
    gaps = fit_gaps(moments, range_seconds=(facts["until"] - facts["since"]).total_seconds())
    rate_seconds, rates = rates_over(
        moments, num_bins=min(_NUM_RATES, max(_LEAST_RATES, len(moments) // _REQUESTS_A_RATE))
    )
    slo = Slo(ttft_ms=tunables.slo_ttft_ms, itl_ms=tunables.slo_itl_ms)
    arrivals = _arrivals(arrivals_as, groups, gaps=gaps, moments=moments, shapes=shapes)
    workload = Workload(
        name=name,
        about=f"Measured from {len(shapes):,} requests of pool {facts['pool']}"
        + (f" and tenant {facts['tenant']}" if facts["tenant"] else "")
        + ".",
        source=f"The request log from {facts['since'].isoformat()} to {facts['until'].isoformat()}.",
        arrivals=arrivals,
        classes=tuple(
            _class_of(class_name, group, fitted[class_name], slo=slo, is_mixed=class_name == _OTHERS)
            for class_name, group in groups.items()
        ),
        duration_seconds=None if arrivals_as == "trace" else min(MAX_SECONDS, max(1.0, round(moments[-1], 3))),
    )
    check_workload(workload)
    evidence = Evidence(
        **facts,
        first_at=shapes[0].arrived_at,
        last_at=shapes[-1].arrived_at,
        num_requests=len(shapes),
        arrivals=gaps,
        rate_seconds=rate_seconds,
        rates=rates,
        classes=fitted,
        notes=_notes(shapes, tunables, rates=rates, num_in_range=facts["num_in_range"]),
    )
    return Measured(workload=workload, evidence=evidence)


def _grouped(shapes: Sequence[RequestShape]) -> dict[str, list[RequestShape]]:
    """Requests by their class's name, the largest class first."""
    key: Callable[[RequestShape], tuple[str, ...]] = _by_tenant
    if len({_by_tenant(each) for each in shapes}) == 1:
        key = _by_endpoint
    sizes = Counter(map(key, shapes)).most_common()
    kept = sizes if len(sizes) <= MAX_CLASSES else sizes[: MAX_CLASSES - 1]
    names = _names([parts for parts, _ in kept])
    groups: dict[str, list[RequestShape]] = {name: [] for name in names.values()}
    others: dict[str, list[RequestShape]] = defaultdict(list)
    for shape in shapes:
        name = names.get(key(shape))
        (others[_OTHERS] if name is None else groups[name]).append(shape)
    return {**groups, **others}


def _by_tenant(shape: RequestShape) -> tuple[str, ...]:
    return (shape.tenant, f"p{shape.priority}" if shape.priority else "")


def _by_endpoint(shape: RequestShape) -> tuple[str, ...]:
    return (shape.endpoint,)


def _names(keys: list[tuple[str, ...]]) -> dict[tuple[str, ...], str]:
    """A class's name for each key, no two alike, none of them `others`."""
    names: dict[tuple[str, ...], str] = {}
    taken = {_OTHERS}
    for key in keys:
        words = "-".join(part for part in key if part).lower() or "nobody"
        base = re.sub(r"[^a-z0-9_.-]+", "-", words).strip("-_.")[:50] or "class"
        name, number = base, 2
        while name in taken:
            name, number = f"{base}-{number}", number + 1
        taken.add(name)
        names[key] = name
    return names


def _measure_class(group: Sequence[RequestShape]) -> ClassEvidence:
    finished = [each for each in group if each.outcome == "finished" and each.completion_tokens > 0]
    prompts = [each.prompt_tokens for each in group if each.prompt_tokens > 0]
    return ClassEvidence(
        num_requests=len(group),
        num_finished=len(finished),
        prompt=fit_lengths(prompts or [1]),
        output=fit_lengths([each.completion_tokens for each in finished]) if finished else None,
    )


def _class_of(
    name: str, group: Sequence[RequestShape], fitted: ClassEvidence, *, slo: Slo, is_mixed: bool
) -> RequestClass:
    num = len(group)
    tenants = {each.tenant for each in group}
    output = fitted.output or fit_lengths([max(1, *(each.completion_tokens for each in group))])
    return RequestClass(
        name=name,
        prompt_tokens=fitted.prompt.lengths,
        output_tokens=output.lengths,
        share=num,
        tenant="" if is_mixed or len(tenants) > 1 else tenants.pop(),
        priority=Counter(each.priority for each in group).most_common(1)[0][0],
        prefixes=_prefixes(group),
        streaming_share=round(sum(each.is_streamed for each in group) / num, 4),
        cancelled_share=round(sum(each.outcome == "aborted" for each in group) / num, 4),
        slo=slo,
    )


def _prefixes(group: Sequence[RequestShape]) -> SharedPrefixes | None:
    cached = [each.cached_tokens for each in group if each.cached_tokens > 0]
    if not cached:
        return None
    return SharedPrefixes(share=round(len(cached) / len(group), 4), tokens=min(MAX_TOKENS, int(np.median(cached))))


def _arrivals(
    arrivals_as: ArrivalsAs,
    groups: dict[str, list[RequestShape]],
    *,
    gaps: FittedArrivals,
    moments: Sequence[float],
    shapes: Sequence[RequestShape],
) -> Arrivals:
    if arrivals_as == "steps":
        return Steps(rates_over(moments, num_bins=_NUM_STEPS)[1])
    if arrivals_as == "fitted":
        return gaps.arrivals
    names = {id(shape): name for name, group in groups.items() for shape in group}
    return Trace(
        tuple(
            TraceRequest(
                moment,
                min(MAX_TOKENS, max(1, shape.prompt_tokens)),
                min(MAX_TOKENS, max(1, shape.completion_tokens)),
                names[id(shape)],
            )
            for moment, shape in zip(moments, shapes, strict=True)
        )
    )


def _notes(
    shapes: Sequence[RequestShape], tunables: Tunables, *, rates: tuple[float, ...], num_in_range: int
) -> tuple[str, ...]:
    """What the figures do not show by themselves."""
    notes = [
        "A log cannot tell whether clients waited for their last answer: arrivals are taken to be independent of it. "
        "Where clients do wait, a closed loop describes them better."
    ]
    if num_in_range > len(shapes):
        notes.append(f"Of {num_in_range:,} requests the newest {len(shapes):,} were looked at.")
    if len(shapes) < _FEW:
        notes.append(f"{len(shapes)} requests are few: distributions fitted to them say little.")
    typical = float(np.mean(rates))
    if len(shapes) >= _FEW and max(rates) > _UNEVEN * typical:
        notes.append(
            f"The rate changed: at most {max(rates):g} a second, {typical:.3g} on average. Steps or a trace keep that."
        )
    if any(each.cached_tokens for each in shapes):
        notes.append(
            "How many different beginnings prompts share is not in the log: one is assumed for each class. Its length "
            "is the median of what was found in the cache."
        )
    elif tunables.prefix_caching == "on":
        notes.append("No prompt's beginning was found in the cache.")
    else:
        notes.append("Prefix caching is off: what prompts have in common was not seen.")
    unfinished = Counter(each.outcome for each in shapes if each.outcome in ("refused", "failed", "aborted"))
    if unfinished:
        told = ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(unfinished.items()))
        notes.append(f"Among them {told}: they count as arrivals, and their answers' lengths do not.")
    return tuple(notes)
