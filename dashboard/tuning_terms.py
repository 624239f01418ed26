"""What a change may be stored with, a guardrail and a canary, from a form. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from dashboard.tuning_presenters import MetricOption, present_metrics
from serving.contracts.errors import InvalidValue
from serving.contracts.guardrails import GuardrailTerms
from serving.tuning.canaries import LEAST_ENGINES


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TermsForm:
    """The fields as typed. `engines` are the ids of those that take work, the one that tries a change where none is
    chosen first; None where they are not known."""

    is_guarded: bool = False
    metric: str = "ttft_p95"
    bound: str = ""
    window: str = "60"
    watch: str = "600"
    is_canary: bool = False
    engine: str = ""
    engines: tuple[str, ...] | None = None
    metrics: tuple[MetricOption, ...] = dataclasses.field(default_factory=present_metrics)

    @property
    def num_engines(self) -> int | None:
        """How many take work; None where that is not known."""
        return None if self.engines is None else len(self.engines)

    @property
    def may_try(self) -> bool:
        """Whether there are engines enough for a canary."""
        return self.num_engines is not None and self.num_engines >= LEAST_ENGINES

    def guardrail(self) -> GuardrailTerms | None:
        """The guardrail; None where none is wanted. Raises `InvalidValue` for what is no number or out of bounds."""
        if not self.is_guarded:
            return None
        terms = GuardrailTerms(
            metric=self.metric,
            bound=_number("guardrail bound", self.bound),
            window_seconds=_number("guardrail window", self.window),
            watch_seconds=_number("guardrail watch", self.watch),
        )
        terms.check()
        return terms


def read_terms(form: Mapping[str, str], *, engines: tuple[str, ...] | None) -> TermsForm:
    """The form's fields; those that are missing are as on an empty form."""
    empty = TermsForm()
    return TermsForm(
        is_guarded="guardrail" in form,
        metric=form.get("metric", empty.metric),
        bound=form.get("bound", empty.bound).strip(),
        window=form.get("window", empty.window).strip(),
        watch=form.get("watch", empty.watch).strip(),
        is_canary="canary" in form,
        engine=form.get("canary_engine", "").strip(),
        engines=engines,
    )


def _number(field: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InvalidValue(field, text, "a number") from None
    if not math.isfinite(value):
        raise InvalidValue(field, text, "a number")
    return value
