"""Which files of tests a run need not even load: to import what computes takes longer than many a run's tests."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from _pytest.mark.expression import Expression

KINDS = frozenset({"model", "stack", "browser", "waits", "heavy", "long"})
_MARK = re.compile(r"\bmark\.(\w+)")
_OF_ALL = re.compile(r"^pytestmark = (.*)$", re.MULTILINE)


def may_have_chosen(path: Path, expression: str) -> bool:
    """Whether a test of the file may be of the kinds that `-m` asks for, by the marks that its text has.

    Of an expression that has other marks too nothing is known.
    """
    if not {*re.findall(r"\w+", expression)} <= KINDS | {"and", "or", "not"}:
        return True
    text = path.read_text(encoding="utf-8")
    of_all = kinds_in("\n".join(_OF_ALL.findall(text)))
    of_some = kinds_in(text) - of_all
    chosen = Expression.compile(expression)
    for number in range(len(of_some) + 1):
        for further in itertools.combinations(sorted(of_some), number):
            marks = of_all.union(further)
            if chosen.evaluate(lambda name, marks=marks, **_: name in marks):
                return True
    return False


def kinds_in(text: str) -> frozenset[str]:
    """The kinds of tests whose marks are written in a text."""
    return KINDS.intersection(_MARK.findall(text))
