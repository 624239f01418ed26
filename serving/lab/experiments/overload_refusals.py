"""How requests were refused: at once, counted, and told truthfully when to come back. Pure functions."""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Iterator, Sequence

from serving.lab.experiments.overload_facts import WAITED_CODES, Facts, codes_of, judged_by, verdict, why_unknown
from serving.lab.experiments.overload_results import Verdict
from serving.lab.experiments.overload_stages import p95
from serving.lab.summaries import Outcome

_LEAST_REFUSALS = 5


def judge_speed(facts: Facts) -> Verdict:
    """Whether the door refuses fast."""
    at_once = [each for each in facts.refused if each.code not in WAITED_CODES]
    bound = facts.criteria.max_refusal_ms
    slowest = p95([1000 * (each.e2e_seconds or 0.0) for each in at_once])
    return verdict(
        "fast_refusals",
        "Whoever is refused at the door hears of it at once",
        f"p95 at most {bound:g} ms",
        "nobody was refused at the door" if slowest is None else f"p95 {slowest:,.0f} ms",
        "not judged" if slowest is None else judged_by(slowest <= bound),
        f"{len(at_once)} refusals, from when each was due to its answer; by code: {codes_of(at_once)}",
    )


def judge_counts(facts: Facts) -> Verdict:
    """Whether the server's log has every refusal."""
    logged, seen = facts.evidence.logged, len(facts.refused)
    told = None if logged is None else logged.get("refused", 0)
    return verdict(
        "counted",
        "Every refusal is counted",
        "the server's log has as many as its clients saw",
        f"{seen} seen" if told is None else f"{seen} seen, {told} logged",
        "not judged" if told is None else judged_by(told == seen),
        "nobody but the simulation itself counts here"
        if logged is None
        else f"of {len(facts.outcomes)} requests sent the log has {sum(logged.values())}",
    )


def judge_headers(facts: Facts) -> Verdict:
    """Whether every refusal says when to come back."""
    refused = facts.refused
    without = [each for each in refused if each.retry_after_seconds is None]
    is_known = bool(refused) and not facts.summary.is_simulated
    return verdict(
        "retry_after",
        "Every refusal is a 429 or 503 that says when to come back",
        "all have Retry-After",
        f"{len(refused) - len(without)} of {len(refused)}" if is_known else "not told",
        judged_by(not without) if is_known else "not judged",
        f"without it, by code: {codes_of(without)}"
        if is_known and without
        else why_unknown(facts, "each answer's header, as its client saw it"),
    )


def judge_truth(facts: Facts) -> Verdict:
    """Whoever comes back when told finds that a place has fallen free since; whether another took it is the load's
    doing, and told beside it."""
    told = [each for each in facts.refused if each.retry_after_seconds is not None and each.code not in WAITED_CODES]
    freed = sorted(_freed_at(facts.outcomes))
    bound = facts.criteria.min_truthful_ratio
    if len(told) < _LEAST_REFUSALS or not freed:
        why = why_unknown(facts, f"{len(told)} refusals say when to come back: too few")
        return verdict("truthful", "Retry-After is true", _truth_bound(bound), "not told", "not judged", why)
    waits = [_next_after(freed, each.end_seconds) for each in told]
    seconds = [each.retry_after_seconds or 0.0 for each in told]
    is_true = [wait is not None and wait <= named for wait, named in zip(waits, seconds, strict=True)]
    ratio = sum(is_true) / len(told)
    known = [wait for wait in waits if wait is not None]
    let_in = _share_let_in(
        facts.outcomes, [each.end_seconds + named for each, named in zip(told, seconds, strict=True)]
    )
    return verdict(
        "truthful",
        "Retry-After is true",
        _truth_bound(bound),
        f"{ratio:.0%}",
        judged_by(ratio >= bound),
        f"named {statistics.median(seconds):.0f} s in the middle, a place fell free after "
        f"{statistics.median(known) if known else float('nan'):.1f} s; of the requests that came when the refused were "
        f"told to, {let_in}",
    )


def _truth_bound(ratio: float) -> str:
    return f"a place in the queue falls free within it for at least {ratio:.0%} of those refused at the door"


def _freed_at(outcomes: Sequence[Outcome]) -> Iterator[float]:
    """When places in the queue fell free: as somebody was first scheduled, or waited no longer."""
    for each in outcomes:
        if each.ending == "refused":
            if each.code in WAITED_CODES:
                yield each.end_seconds
        elif each.queue_seconds is not None:
            yield each.due_seconds + each.queue_seconds


def _next_after(moments: Sequence[float], moment: float) -> float | None:
    place = bisect.bisect_right(moments, moment)
    return moments[place] - moment if place < len(moments) else None


def _share_let_in(outcomes: Sequence[Outcome], moments: Sequence[float]) -> str:
    """Of the first request that was due at each of these moments or after it."""
    due = sorted(outcomes, key=lambda each: each.due_seconds)
    times = [each.due_seconds for each in due]
    found = [due[place] for moment in moments if (place := bisect.bisect_left(times, moment)) < len(due)]
    if not found:
        return "none is known, as none came any more"
    share = sum(each.ending != "refused" for each in found) / len(found)
    return f"{share:.0%} were let in"
