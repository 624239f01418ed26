"""What forms about alert rules say, as they were typed, and the values that they stand for. Pure functions."""

from __future__ import annotations

import dataclasses
import re
from typing import Any, Protocol

from serving.contracts.errors import DomainError, InvalidValue
from serving.contracts.texts import without_secrets
from serving.telemetry.conditions import METRICS

_NUMBER = re.compile(r"\d{1,9}(\.\d{1,9})?", re.ASCII)


class Posted(Protocol):
    """A posted form."""

    def get(self, key: str, default: str, /) -> str: ...

    def __contains__(self, key: object, /) -> bool: ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A rule as a form shows it. Of a share, `bound` is in per cent."""

    name: str = ""
    pool: str = ""
    metric: str = "ttft_p95"
    side: str = "above"
    bound: str = ""
    for_seconds: str = "60"
    webhook_url: str = ""
    is_enabled: bool = True

    def values(self) -> dict[str, Any]:
        """What it stands for, by field. What is no number stays a text, which the services refuse."""
        bound = _number(self.bound)
        if isinstance(bound, float) and is_share(self.metric):
            bound /= 100
        return {
            "name": self.name.strip(),
            "pool": self.pool,
            "metric": self.metric,
            "is_above": self.side != "below",
            "bound": bound,
            "for_seconds": _number(self.for_seconds),
            "webhook_url": self.webhook_url.strip(),
            "is_enabled": self.is_enabled,
        }


def read_draft(post: Posted) -> Draft:
    """A posted form, without the API keys that somebody may have pasted into it by mistake."""
    texts = {field: without_secrets(post.get(field, "")) for field in Draft.__slots__ if field != "is_enabled"}
    return Draft(**texts, is_enabled="is_enabled" in post)


def draft_of(rule: Any) -> Draft:
    """A stored rule as the form shows it first."""
    bound = 100 * rule.bound if is_share(rule.metric) else rule.bound
    return Draft(
        name=rule.name,
        pool=rule.pool,
        metric=rule.metric,
        side="above" if rule.is_above else "below",
        bound=f"{bound:.9g}",
        for_seconds=f"{rule.for_seconds:.9g}",
        webhook_url=rule.webhook_url,
        is_enabled=rule.is_enabled,
    )


def is_share(metric: str) -> bool:
    """Whether people say the metric in per cent."""
    return metric in METRICS and METRICS[metric].unit == "share"


def what_is_wrong(draft: Draft, error: DomainError) -> dict[str, str]:
    """What a service refused, by field, in the units of the form."""
    bound = _number(draft.bound)
    if error.param == "bound" and isinstance(bound, float) and is_share(draft.metric):
        error = InvalidValue("bound", bound, "a number from 0 to 100 (%)")
    return {error.param or "name": error.message}


def _number(text: str) -> float | str:
    return float(text) if _NUMBER.fullmatch(text.strip()) else text
