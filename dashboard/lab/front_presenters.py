"""The Lab's front page: the seven steps of a pool as rows with one button each. Pure, but for the addresses."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode

from django.urls import reverse

from serving.lab.steps.evidence import Ref
from serving.lab.steps.judging import Act, Does, State, Step

_ORDERING: Final[frozenset[Does]] = frozenset({"measure", "sweep", "run", "overload", "again"})
"""What is only for those who may experiment."""
_PAGES: Final[Mapping[str, tuple[str, str]]] = {
    "run": ("lab_run", "run_id"),
    "sweep": ("lab_sweep", "sweep_id"),
    "overload": ("lab_overload", "overload_id"),
    "three_ways": ("lab_three_ways_one", "experiment_id"),
}
_FORMS: Final[Mapping[Does, str]] = {"sweep": "lab_sweep_new", "run": "lab_run_new", "overload": "lab_overload_new"}
_TERMS: Final = {1: "workload", 2: "slo", 3: "knee", 4: "percentile", 5: "mixture", 6: "backpressure", 7: "fingerprint"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepButton:
    """What leads on from a step: a link, or, where `refs` are given, a form that orders them again."""

    words: str
    url: str
    refs: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A step as the page shows it. `term` is a word of the glossary, `result` names and `result_url` leads to its
    evidence, `going_on` is what plays already. `has_failed`: what was tested did not do what it is to do. `is_next`
    marks the first that is not done."""

    number: int
    title: str
    term: str
    about: str
    state: State
    says: tuple[str, ...]
    warnings: tuple[str, ...]
    differs: tuple[str, ...]
    result: str
    result_url: str
    ended_at: datetime.datetime | None
    going_on: str
    has_failed: bool
    is_next: bool
    button: StepButton | None


def present_steps(steps: tuple[Step, ...], pool: str, *, may_experiment: bool) -> tuple[StepRow, ...]:
    """The steps in their order; buttons that order something are for those who may."""
    first_open = next((each.number for each in steps if each.state != "done"), None)
    return tuple(_row(each, pool, may_experiment=may_experiment, is_next=each.number == first_open) for each in steps)


def url_of(ref: Ref) -> str:
    """The page of something that the Lab played."""
    name, argument = _PAGES[ref.kind]
    return reverse(f"dashboard:{name}", kwargs={argument: ref.id})


def _row(step: Step, pool: str, *, may_experiment: bool, is_next: bool) -> StepRow:
    result, going_on = step.result, step.goes_on
    is_allowed = may_experiment or step.act.does not in _ORDERING
    return StepRow(
        number=step.number,
        title=step.title,
        term=_TERMS[step.number],
        about=step.about,
        state=step.state,
        says=step.says,
        warnings=step.warnings,
        differs=step.differs,
        result="" if result is None else result.ref.words.capitalize(),
        result_url="" if result is None else url_of(result.ref),
        ended_at=None if result is None else result.ended_at,
        going_on="" if going_on is None else f"{going_on.ref.words.capitalize()} {_STANDING[going_on.state]}.",
        has_failed=result is not None and bool(result.trouble),
        is_next=is_next,
        button=_button(step.act, pool) if is_allowed else None,
    )


_STANDING: Final = {"waiting": "waits for its turn", "running": "plays now"}


def _button(act: Act, pool: str) -> StepButton:
    if act.does == "again":
        refs = tuple(f"{ref.kind} {ref.id}" for ref in act.refs)
        return StepButton(words=act.words, url=reverse("dashboard:lab_again"), refs=refs)
    return StepButton(words=act.words, url=_link(act, pool))


def _link(act: Act, pool: str) -> str:
    match act.does:
        case "measure":
            return f"{reverse('dashboard:lab_workload_measure')}?{urlencode({'pool': pool})}"
        case "choose_workload":
            return reverse("dashboard:lab_workloads")
        case "set_targets":
            return reverse("dashboard:tuning", args=[pool])
        case "look_for_engines":
            return reverse("dashboard:fleet")
        case "show" if act.workload:
            return reverse("dashboard:lab_workload", args=[act.workload])
        case "show" | "watch":
            return url_of(act.refs[0])
        case _:
            query = {"pool": pool, "workload": act.workload}
            # What is simulated is no evidence: the form proposes the engines.
            query |= {"way": "played"} if act.does == "overload" else {}
            told = urlencode({name: value for name, value in query.items() if value})
            return f"{reverse(f'dashboard:{_FORMS[act.does]}')}?{told}"
