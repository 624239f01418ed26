"""Whether backpressure did what the policy says, criterion by criterion. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator

from serving.lab.experiments.overload_facts import WAITED_CODES, Facts, codes_of, judged_by, verdict
from serving.lab.experiments.overload_fairness import judge_fairness
from serving.lab.experiments.overload_plan import CALM
from serving.lab.experiments.overload_refusals import judge_counts, judge_headers, judge_speed, judge_truth
from serving.lab.experiments.overload_results import Verdict
from serving.lab.experiments.overload_stages import (
    due_within,
    first_token_seconds,
    mean_told_waiting,
    mean_waiting,
    p95,
    recovery_seconds,
)

_KV_ROUNDING = 0.005
_LEAST_QUEUE = 1.0
"""Of a queue that is shorter on an average two accounts say nothing."""
_UNSEEN_SECONDS = 0.25


def judge(facts: Facts) -> tuple[Verdict, ...]:
    """Every criterion, in the order in which a request meets what it is about."""
    return tuple(_verdicts(facts))


def _verdicts(facts: Facts) -> Iterator[Verdict]:
    yield _overloaded(facts)
    yield _queue_requests(facts)
    yield _queue_tokens(facts)
    yield judge_speed(facts)
    yield judge_counts(facts)
    yield judge_headers(facts)
    yield judge_truth(facts)
    yield _wait(facts)
    yield _goodput(facts)
    yield _no_failures(facts)
    if len({each.tenant for each in facts.workload.classes}) > 1:
        yield judge_fairness(facts)
    yield _memory(facts)
    yield _recovery(facts)
    yield _littles_law(facts)
    yield _left_behind(facts)


def _overloaded(facts: Facts) -> Verdict:
    """Without this all others would pass, and say nothing."""
    top, saturation = facts.top, facts.capacity.saturation_per_second
    waits = mean_waiting(facts.outcomes, top.begin_seconds, top.end_seconds)
    return verdict(
        "overloaded",
        "The pool was overloaded",
        f"more than its capacity of {saturation:.3g} requests/s is offered, and some are refused or wait",
        f"{top.offered_per_second:.3g} requests/s offered, {top.num_refused} refused, {waits:.1f} waiting in the mean",
        judged_by(top.offered_per_second > saturation and (top.num_refused > 0 or waits >= _LEAST_QUEUE)),
        f"{top.num_offered} requests were due at {top.multiple:g} times capacity",
    )


def _queue_requests(facts: Facts) -> Verdict:
    return _queue(facts, "requests", facts.summary.peak_permits_requests, "sequences")


def _queue_tokens(facts: Facts) -> Verdict:
    return _queue(facts, "tokens", facts.summary.peak_permits_tokens, "prompt tokens")


def _queue(facts: Facts, name: str, peak: int | None, unit: str) -> Verdict:
    bound = facts.tunables[f"max_queue_{name}"]
    return verdict(
        f"queue_{name}",
        f"The queue stays within max_queue_{name}",
        f"at most {bound:,} {unit} wait",
        "not told" if peak is None else f"{peak:,} {unit} at most",
        "not judged" if peak is None else judged_by(peak <= bound),
        "what the door counts as waiting, looked at twice a second"
        if not facts.summary.is_simulated
        else "what the simulated door counts as waiting, looked at once a second",
    )


def _wait(facts: Facts) -> Verdict:
    allowed = facts.tunables["max_queue_wait_ms"]
    waited = [1000 * each.queue_seconds for each in facts.outcomes if each.queue_seconds is not None]
    turned_away = [1000 * (each.e2e_seconds or 0.0) for each in facts.refused if each.code in WAITED_CODES]
    slack = facts.criteria.wait_slack_ms
    longest = max([*waited, *turned_away], default=None)
    return verdict(
        "queue_wait",
        "Nobody waits longer than max_queue_wait_ms",
        f"at most {allowed:,.0f} ms, and {slack:,.0f} ms until the queue is looked at",
        "no wait is known" if longest is None else f"{longest:,.0f} ms at most",
        "not judged" if longest is None else judged_by(longest <= allowed + slack),
        f"{len(waited)} waits as the server told them, {len(turned_away)} refused after theirs",
    )


def _goodput(facts: Facts) -> Verdict:
    best, top, ratio = facts.capacity.goodput_per_second, facts.top, facts.criteria.min_goodput_ratio
    share = top.goodput_per_second / best if best > 0 else None
    return verdict(
        "goodput",
        "Goodput is kept",
        f"at least {ratio:.0%} of {best:.3g} requests/s, the best below capacity",
        f"{top.goodput_per_second:.3g} requests/s at {top.multiple:g} times capacity"
        + ("" if share is None else f": {share:.0%}"),
        "not judged" if share is None else judged_by(share >= ratio),
        "requests that were due in that stage and ended within their objectives"
        if share is not None
        else "no request was within its objectives at any rate that was tried below capacity",
    )


def _no_failures(facts: Facts) -> Verdict:
    failed = [each for each in facts.outcomes if each.ending == "failed"]
    return verdict(
        "no_failures",
        "Nothing fails",
        "no error but the policy's own, no stream that breaks",
        f"{len(failed)} of {len(facts.outcomes)} failed",
        judged_by(not failed),
        f"by code: {codes_of(failed)}; the first: {facts.summary.first_failure or 'unknown'}"
        if failed
        else "every stream ended with its last event",
    )


def _memory(facts: Facts) -> Verdict:
    limit, peak = facts.tunables["kv_limit_ratio"], facts.summary.peak_kv_used_ratio
    host = facts.summary.peak_host_memory_bytes
    memory = "" if host is None else f"; the engines' processes had {host / 2**20:,.0f} MiB at most"
    return verdict(
        "memory",
        "Keys and values stay within kv_limit_ratio",
        f"at most {limit:.1%} of the pool's blocks",
        "not told" if peak is None else f"{peak:.1%} at most",
        "not judged" if peak is None else judged_by(peak <= limit + _KV_ROUNDING),
        f"{facts.summary.preemptions or 0} preemptions{memory}",
    )


def _recovery(facts: Facts) -> Verdict:
    calm, after = facts.stages[0], facts.stages[-1].begin_seconds
    bound, title = facts.criteria.max_recovery_seconds, "It recovers"
    words = f"within {bound:g} s answers begin as before the overload"
    before = due_within(facts.outcomes, calm.begin_seconds, calm.end_seconds)
    usual = p95([seconds for each in before if (seconds := first_token_seconds(each)) is not None])
    if usual is None:
        return verdict(
            "recovery", title, words, "nothing to compare with", "not judged", "the first stage served nobody"
        )
    bound_seconds = facts.criteria.recovery_factor * usual
    took = recovery_seconds(facts.outcomes, after=after, bound_seconds=bound_seconds)
    return verdict(
        "recovery",
        title,
        words,
        "not within the last stage" if took is None else f"after {took:.1f} s",
        judged_by(took is not None and took <= bound),
        f"from then on nine of ten begin within {1000 * bound_seconds:,.0f} ms, {facts.criteria.recovery_factor:g} "
        f"times the p95 at half of capacity; {_expected_drain(facts, after)}",
    )


def _expected_drain(facts: Facts, after: float) -> str:
    """What is there divided by how much faster it is served than more comes."""
    waiting = sum(
        each.due_seconds
        <= after
        < (each.end_seconds if each.queue_seconds is None else each.due_seconds + each.queue_seconds)
        for each in facts.outcomes
    )
    spare = (1 - CALM) * facts.capacity.saturation_per_second
    return f"{waiting} waited as the overload ended, which takes {waiting / spare:.0f} s at the measured capacity"


def _littles_law(facts: Facts) -> Verdict:
    top, bound = facts.top, facts.criteria.max_littles_error
    counted = mean_waiting(facts.outcomes, top.begin_seconds, top.end_seconds)
    told = mean_told_waiting(facts.summary.moments, top.begin_seconds, top.end_seconds)
    # Who comes during a step is in no engine's count before its end.
    unseen = _UNSEEN_SECONDS * top.accepted_per_second
    is_known = told is not None and max(told, counted) >= _LEAST_QUEUE
    error = abs(told - counted) / max(told, counted) if told is not None and is_known else None
    return verdict(
        "littles_law",
        "The books of the queue agree (Little's law)",
        f"the mean queue as told and as added up from each one's wait differ by at most {bound:.0%}, or by the "
        f"{unseen:.1f} who come in {_UNSEEN_SECONDS:g} s",
        "too short a queue" if error is None else f"{error:.0%}",
        "not judged" if told is None or error is None else judged_by(error <= bound or abs(told - counted) <= unseen),
        f"told {'nothing' if told is None else f'{told:.1f}'}, added up {counted:.1f}, at {top.multiple:g} times "
        "capacity",
    )


def _left_behind(facts: Facts) -> Verdict:
    rest, title = facts.evidence.rest, "Nothing is left behind"
    words = "no sequence, and no permit at the door"
    if rest is None:
        return verdict("left_behind", title, words, "not told", "not judged", "a simulation ends with its last request")
    measured = (
        f"{rest.num_running} running, {rest.num_waiting} waiting, permits for {rest.permits_requests} sequences and "
        f"{rest.permits_tokens} tokens"
    )
    is_known = rest.is_empty or not rest.has_others
    return verdict(
        "left_behind",
        title,
        words,
        measured,
        judged_by(rest.is_empty) if is_known else "not judged",
        "looked at until it was so, for 20 s at most"
        if is_known
        else "others sent requests meanwhile: they may be theirs",
    )
