"""An overload test's requests, by stage and over time. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from serving.lab.experiments.overload_results import Slice, Stage
from serving.lab.recording import is_good
from serving.lab.summaries import Moment, Outcome
from serving.lab.workloads.workload import Slo

_LEAST_RECOVERED = 5
"""Requests that must be served as before for the pool to have recovered."""
_MAY_BE_SLOW = 0.1
"""Of them: of the calm's own, one of twenty is above its p95."""


def stages_of(
    outcomes: Sequence[Outcome], multiples: Sequence[float], *, stage_seconds: float, slos: Mapping[str, Slo]
) -> tuple[Stage, ...]:
    """Each stage's requests, by when they were due."""
    return tuple(
        _stage(multiple, number * stage_seconds, (number + 1) * stage_seconds, outcomes, slos)
        for number, multiple in enumerate(multiples)
    )


def due_within(outcomes: Sequence[Outcome], begin: float, end: float) -> list[Outcome]:
    """Those that were due from `begin` on and before `end`, in that order."""
    return sorted((each for each in outcomes if begin <= each.due_seconds < end), key=lambda each: each.due_seconds)


def first_token_seconds(outcome: Outcome) -> float | None:
    """How long an answer took to begin, or to come where it came in one piece; None where none came."""
    if outcome.ending not in ("finished", "cancelled"):
        return None
    return outcome.e2e_seconds if outcome.ttft_seconds is None else outcome.ttft_seconds


def p95(values: Sequence[float]) -> float | None:
    """The 95th percentile; None of nothing."""
    return float(np.percentile(values, 95)) if values else None


def _stage(multiple: float, begin: float, end: float, outcomes: Sequence[Outcome], slos: Mapping[str, Slo]) -> Stage:
    due = due_within(outcomes, begin, end)
    num_refused = sum(each.ending == "refused" for each in due)
    num_good = sum(is_good(each, slos[each.request_class]) for each in due)
    ttft = p95([1000 * seconds for each in due if (seconds := first_token_seconds(each)) is not None])
    length = end - begin
    return Stage(
        multiple=multiple,
        begin_seconds=begin,
        end_seconds=end,
        num_offered=len(due),
        num_refused=num_refused,
        num_failed=sum(each.ending == "failed" for each in due),
        offered_per_second=round(len(due) / length, 4),
        accepted_per_second=round((len(due) - num_refused) / length, 4),
        goodput_per_second=round(num_good / length, 4),
        ttft_p95_ms=None if ttft is None else round(ttft, 1),
    )


def recovery_seconds(outcomes: Sequence[Outcome], *, after: float, bound_seconds: float) -> float | None:
    """How long after the overload's end the first request was due from which on requests were served as before it: of
    it and all later ones nine of ten, or all but one, began within `bound_seconds`. Refused and failed ones
    did not. None where there was none, of at least five."""
    due = due_within(outcomes, after, float("inf"))
    num_slow, found = 0, None
    for place in range(len(due) - 1, -1, -1):
        began = first_token_seconds(due[place])
        is_slow = due[place].ending in ("refused", "failed") or (began is not None and began > bound_seconds)
        num_slow, number = num_slow + is_slow, len(due) - place
        if not is_slow and number >= _LEAST_RECOVERED and num_slow <= max(1, _MAY_BE_SLOW * number):
            found = max(0.0, due[place].due_seconds - after)
    return found


def mean_waiting(outcomes: Sequence[Outcome], begin: float, end: float) -> float:
    """How many waited on an average from `begin` to `end`, added up from each one's own wait: L = λW over a stretch
    (Little 1961, "A Proof for the Queuing Formula: L = λW"), with the waits cut where the stretch begins and ends."""
    waited = 0.0
    for each in outcomes:
        if each.ending == "refused":
            until = each.end_seconds
        elif each.queue_seconds is not None:
            until = each.due_seconds + each.queue_seconds
        else:
            continue
        waited += max(0.0, min(end, until) - max(begin, each.due_seconds))
    return waited / (end - begin)


def mean_told_waiting(moments: Sequence[Moment], begin: float, end: float) -> float | None:
    """How many waited on an average from `begin` to `end` as the server told it; None where it told nothing."""
    told = [
        (each.num_waiting, each.seconds)
        for each in moments
        if each.num_waiting is not None and begin <= each.at_seconds and each.at_seconds + each.seconds <= end
    ]
    total = sum(seconds for _, seconds in told)
    return sum(number * seconds for number, seconds in told) / total if total else None


def slices_of(outcomes: Sequence[Outcome], moments: Sequence[Moment]) -> tuple[Slice, ...]:
    """The test over time, in the stretches that its run was summed up in."""
    if not moments:
        return ()
    width = moments[0].seconds
    last = len(moments) - 1
    offered, refused = [0] * len(moments), [0] * len(moments)
    for each in outcomes:
        place = min(last, int(each.due_seconds // width))
        offered[place] += 1
        refused[place] += each.ending == "refused"
    return tuple(
        Slice(
            at_seconds=moment.at_seconds,
            offered_per_second=round(offered[place] / width, 4),
            accepted_per_second=round((offered[place] - refused[place]) / width, 4),
            refused_per_second=round(refused[place] / width, 4),
            goodput_per_second=moment.goodput_per_second,
            num_waiting=moment.num_waiting,
        )
        for place, moment in enumerate(moments)
    )
