"""The seven steps of tuning, judged by what is known of a pool. Pure functions."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from serving.lab.fingerprints import LENGTHS, differences
from serving.lab.steps.evidence import Finding, PoolEvidence, Ref, Result, Try

State = Literal["missing", "done", "stale"]
Does = Literal[
    "measure",
    "choose_workload",
    "set_targets",
    "sweep",
    "run",
    "overload",
    "show",
    "watch",
    "again",
    "look_for_engines",
]
MIXED_WORKLOAD: Final = "rag"
"""A ready workload of two classes, long and short."""


class Act(msgspec.Struct, frozen=True, kw_only=True):
    """The next thing to do for a step. `refs` are what is looked at or ordered again, `workload` names what is
    proposed to be played (empty: whatever the form proposes)."""

    does: Does
    words: str
    refs: tuple[Ref, ...] = ()
    workload: str = ""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the tuning process. `says` is its evidence in words, `warnings` is what somebody should know before
    relying on it, `differs` why it is stale. `goes_on` is what plays or waits already."""

    number: int
    title: str
    about: str
    state: State
    says: tuple[str, ...]
    act: Act
    warnings: tuple[str, ...] = ()
    differs: tuple[str, ...] = ()
    result: Result | None = None
    goes_on: Try | None = None


def judge_steps(known: PoolEvidence) -> tuple[Step, ...]:
    """The seven steps of a pool, in their order."""
    return (
        _lengths(known),
        _targets(known),
        _played(
            known,
            known.sweep,
            number=3,
            title="Limits raised gradually",
            about="One limit at a time, from a cautious value upwards, until the targets break.",
            act=Act(does="sweep", words="Order a sweep", workload=_own_workload(known)),
            missing="No sweep of this pool came to its end.",
        ),
        _played(
            known,
            known.run,
            number=4,
            title="Observed together",
            about="Throughput, queueing, percentiles and memory of one run: a gain in one is often paid in another.",
            act=Act(does="run", words="Order a run", workload=_own_workload(known)),
            missing="No run of this pool has throughput, queue times, percentiles and memory in one report.",
        ),
        _played(
            known,
            known.mixture,
            number=5,
            title="Mixtures tested",
            about="Short and long requests at once: a long prompt may hold up everybody's next token.",
            act=Act(does="run", words="Order a mixed run", workload=_mixed_workload(known)),
            missing="No run of this pool had requests of two classes or more.",
        ),
        _played(
            known,
            known.overload,
            number=6,
            title="Overload tested",
            about="More than there is room for, on purpose: the queue stays bounded, refusals are quick and true.",
            act=Act(does="overload", words="Order an overload test", workload=_own_workload(known)),
            missing="This pool was never overloaded on purpose.",
        ),
        _still_holds(known),
    )


def _lengths(known: PoolEvidence) -> Step:
    measured = known.measured
    about = "How long prompts and answers really are, from the request log: everything below rests on it."
    if measured is None:
        if not known.has_requests:
            says = "The log has no request of this pool yet. Until it has, a ready workload stands in for them."
            act = Act(does="choose_workload", words="Look at ready workloads")
        else:
            says, act = "No workload was measured from this pool's requests.", _measure("Measure them")
        return _first(state="missing", about=about, says=(says,), act=act)
    whose = f" of tenant {measured.tenant}" if measured.tenant else ""
    says = (
        f"{measured.name}, from {measured.num_requests:,} request{'' if measured.num_requests == 1 else 's'}{whose} "
        f"until {measured.until:%Y-%m-%d %H:%M} UTC"
    )
    differs = differences(measured.fingerprint, known.now, of=LENGTHS)
    warnings = _moved(known)
    if differs or warnings:
        act = _measure("Measure again")
    else:
        act = Act(does="show", words="Look at it", workload=measured.name)
    state: State = "stale" if differs else "done"
    return _first(state=state, about=about, says=(says,), act=act, warnings=warnings, differs=differs)


def _first(
    *,
    state: State,
    about: str,
    says: tuple[str, ...],
    act: Act,
    warnings: tuple[str, ...] = (),
    differs: tuple[str, ...] = (),
) -> Step:
    return Step(
        number=1,
        title="Lengths measured",
        about=about,
        state=state,
        says=says,
        act=act,
        warnings=warnings,
        differs=differs,
    )


def _measure(words: str) -> Act:
    return Act(does="measure", words=words)


def _moved(known: PoolEvidence) -> tuple[str, ...]:
    traffic = known.traffic
    if traffic is None:
        return ()
    parts = {"prompts": traffic.prompts, "answers": traffic.answers}
    moved = [f"{name} by {apart:.0%}" for name, apart in parts.items() if apart is not None and apart > traffic.bound]
    if not moved:
        return ()
    return (
        f"Traffic has moved since: in the {traffic.num_requests:,} requests after it, the distribution of lengths "
        f"differs, {' and '.join(moved)} at the widest (up to {traffic.bound:.0%} is let pass).",
    )


def _targets(known: PoolEvidence) -> Step:
    targets, measured = known.targets, known.measured
    bounds = f"TTFT within {targets.ttft_ms:,g} ms, gaps between tokens within {targets.itl_ms:,g} ms"
    of_workload = "" if measured is None or not measured.slo else f"Workload {measured.name}: {measured.slo}"
    says = [f"{bounds} (version {targets.version})"] if targets.are_chosen else []
    says += [of_workload] if of_workload else []
    is_done = bool(says)
    return Step(
        number=2,
        title="Targets set",
        about="What users are to be given. The best setting depends on it: without a target there is none.",
        state="done" if is_done else "missing",
        says=tuple(says) or (f"Nobody chose any: {bounds} are what every pool begins with.",),
        act=Act(does="set_targets", words="Change them" if is_done else "Set them"),
    )


def _played(
    known: PoolEvidence, finding: Finding, *, number: int, title: str, about: str, act: Act, missing: str
) -> Step:
    """A step whose evidence is something that was played."""
    result, newest = finding.result, finding.newest
    warnings = [] if newest is None or newest.goes_on else [_failed(newest)]
    going_on = newest if newest is not None and newest.goes_on else None
    if going_on is not None:
        act = Act(does="watch", words=f"Watch {going_on.ref.words}", refs=(going_on.ref,))
    if result is None:
        says = (missing, finding.hint) if finding.hint else (missing,)
        return Step(
            number=number,
            title=title,
            about=about,
            state="missing",
            says=says,
            act=act,
            warnings=tuple(warnings),
            goes_on=going_on,
        )
    differs = differences(result.fingerprint, known.now)
    if going_on is None:
        act = _look_or_repeat(result, is_stale=bool(differs))
    return Step(
        number=number,
        title=title,
        about=about,
        state="stale" if differs else "done",
        says=(result.says,),
        act=act,
        warnings=(*((result.trouble,) if result.trouble else ()), *warnings),
        differs=differs,
        result=result,
        goes_on=going_on,
    )


def _look_or_repeat(result: Result, *, is_stale: bool) -> Act:
    if is_stale:
        return Act(does="again", words="Run it again", refs=(result.ref,))
    return Act(does="show", words="See what failed" if result.trouble else "Look at it", refs=(result.ref,))


def _failed(attempt: Try) -> str:
    why = f": {attempt.error}" if attempt.error else ""
    return f"A later try, {attempt.ref.words}, {attempt.state}{why}."


def _still_holds(known: PoolEvidence) -> Step:
    results = known.results
    stale = {each.ref: differences(each.fingerprint, known.now) for each in results}
    stale = {ref: differs for ref, differs in stale.items() if differs}
    unmarked = [each.ref.words for each in results if not each.fingerprint.num_engines]
    warnings = (f"Nobody knows on what was measured: {', '.join(unmarked)}.",) if unmarked else ()
    state: State = "done"
    if not results:
        state, says = "missing", "Nothing was measured yet that could be out of date."
        act = Act(does="sweep", words="Order a sweep", workload=_own_workload(known))
    elif not known.now.num_engines:
        state, says = "missing", "No engine of this pool is known to live: whether results still hold cannot be told."
        act = Act(does="look_for_engines", words="Look at the fleet")
    elif stale:
        state, says = "stale", f"{len(stale)} of {len(results)} results are of what was there then."
        act = _again("Run it again" if len(stale) == 1 else f"Run all {len(stale)} again", tuple(stale))
    else:
        says = f"{'The one result was' if len(results) == 1 else f'All {len(results)} results were'} measured on this."
        act = _again("Run all again", tuple(each.ref for each in results))
    going_on = _going_on(known, act.refs)
    if going_on is not None:
        act = Act(does="watch", words=f"Watch {going_on.ref.words}", refs=(going_on.ref,))
    return Step(
        number=7,
        title="Done again when something changed",
        about="Another model, processor, precision, context limit or engine makes every figure above one of the past.",
        state=state,
        says=(says,),
        act=act,
        warnings=warnings,
        differs=tuple(f"{ref.words}: {', '.join(differs)}" for ref, differs in stale.items()),
        goes_on=going_on,
    )


def _again(words: str, refs: tuple[Ref, ...]) -> Act:
    return Act(does="again", words=words, refs=refs)


def _going_on(known: PoolEvidence, refs: tuple[Ref, ...]) -> Try | None:
    """What plays or waits already, where it is of a kind of which something would be ordered again."""
    kinds = {ref.kind for ref in refs}
    findings = (known.sweep, known.run, known.mixture, known.overload, known.three_ways)
    tries = [each.newest for each in findings if each.newest is not None and each.newest.goes_on]
    return next((each for each in tries if each.ref.kind in kinds), None)


def _own_workload(known: PoolEvidence) -> str:
    return "" if known.measured is None else known.measured.name


def _mixed_workload(known: PoolEvidence) -> str:
    measured = known.measured
    return measured.name if measured is not None and measured.num_classes > 1 else MIXED_WORKLOAD
