"""Ordering again what was measured, with the same plan. Blocking."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
from django.db import transaction
from django.db.models import QuerySet

from serving.contracts.actors import Author
from serving.contracts.errors import InvalidValue
from serving.lab.experiments.overload_plan import OverloadPlan, decode_overload_plan
from serving.lab.experiments.sweep_plan import SweepPlan, decode_plan
from serving.lab.experiments.three_ways_plan import ThreeWaysPlan, decode_three_ways_plan
from serving.lab.models import Experiment, Run, State
from serving.lab.runs.again import order_run_again
from serving.lab.runs.services import order_experiment
from serving.lab.steps.evidence import Kind, Ref

_DECODE: Final[Mapping[str, Callable[[Mapping[str, Any]], SweepPlan | OverloadPlan | ThreeWaysPlan]]] = {
    "sweep": decode_plan,
    "overload": decode_overload_plan,
    "three_ways": decode_three_ways_plan,
}
KINDS: Final[tuple[Kind, ...]] = ("run", "sweep", "overload", "three_ways")
MOST_AT_ONCE: Final = 10


def read_ref(text: str) -> Ref:
    """What `sweep 7` names; raises `InvalidValue` for what names nothing."""
    name, _, number = text.partition(" ")
    for kind in KINDS:
        if kind == name and number.isascii() and number.isdigit() and len(number) <= 18:
            return Ref(kind, int(number))
    raise InvalidValue("result", text[:40], f"one of {', '.join(KINDS)}, and its number")


def order_again(refs: Iterable[Ref], *, author: Author) -> list[Ref]:
    """Order each anew on its pool, with the very plan or workload that it was played with, all or none; what it was
    saved as may have been deleted since. An overload test measures capacity anew, as the old one is out of date.

    Raises `InvalidValue` for more than 10, for what there is not and what waits or plays already, and what
    `order_run_again` and `order_experiment` do.
    """
    distinct = list(dict.fromkeys(refs))
    if not 1 <= len(distinct) <= MOST_AT_ONCE:
        raise InvalidValue("result", f"{len(distinct)} results", f"1 to {MOST_AT_ONCE} of them")
    with transaction.atomic():
        return [_run_again(ref, author) if ref.kind == "run" else _experiment_again(ref, author) for ref in distinct]


def _experiment_again(ref: Ref, author: Author) -> Ref:
    old = Experiment.objects.filter(kind=ref.kind, pk=ref.id).first()
    if old is None:
        raise InvalidValue("result", ref.words, "one that there is")
    same = Experiment.objects.filter(kind=ref.kind, pool=old.pool, title=old.title)
    _check_none_goes_on(ref, same.filter(state__in=(State.WAITING, State.RUNNING)))
    plan = _DECODE[ref.kind](old.plan)
    if isinstance(plan, OverloadPlan):
        plan = msgspec.structs.replace(plan, capacity=None)
    made = order_experiment(ref.kind, pool=old.pool, title=old.title, plan=msgspec.to_builtins(plan), author=author)
    return Ref(ref.kind, made.pk)


def _run_again(ref: Ref, author: Author) -> Ref:
    old = Run.objects.filter(pk=ref.id).values("pool", "title").first()
    if old is not None:
        open_ones = Run.objects.filter(**old, experiment=None, state__in=(State.WAITING, State.RUNNING))
        _check_none_goes_on(ref, open_ones)
    return Ref("run", order_run_again(ref.id, author=author).pk)


def _check_none_goes_on(ref: Ref, open_ones: QuerySet[Any, Any]) -> None:
    other = open_ones.values_list("pk", flat=True).first()
    if other is not None:
        bounds = f"one of which none waits or plays, and {Ref(ref.kind, other).words} does"
        raise InvalidValue("result", ref.words, bounds)
