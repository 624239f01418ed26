"""Alert rules and alerts as their pages show them. Pure functions."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Collection, Iterable, Sequence
from typing import Any
from urllib.parse import urlsplit

from serving.telemetry.alerts import RaisedAlert
from serving.telemetry.conditions import METRICS, Condition, Metric, Unit, told

_UNITS: dict[Unit, str] = {"share": "%"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RaisedRow:
    """An alert that goes on."""

    name: str
    pool: str
    text: str
    value: str
    began_at: datetime.datetime


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RuleRow:
    """A rule in the list; `host` is whom its webhook tells, and `is_raised` None where nobody knows. It `rests` while
    its pool is not configured."""

    id: int
    name: str
    pool: str
    text: str
    host: str
    is_enabled: bool
    rests: bool
    is_raised: bool | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AlertRow:
    """An alert of the past or present; `lasted` is empty while it goes on, `why_ended` unless it was not that the bound
    was met, `told` what became of its webhook."""

    name: str
    pool: str
    text: str
    value: str
    began_at: datetime.datetime
    lasted: str
    why_ended: str
    told: str
    is_untold: bool


@dataclasses.dataclass(frozen=True, slots=True)
class MetricChoice:
    """A metric as a form offers it."""

    name: str
    title: str
    unit: str


def metric_choices() -> tuple[MetricChoice, ...]:
    """All metrics, in the order in which they are offered."""
    return tuple(MetricChoice(metric.name, metric.title, _unit(metric)) for metric in METRICS.values())


def present_raised(alerts: Iterable[RaisedAlert]) -> tuple[RaisedRow, ...]:
    """The alerts that go on."""
    return tuple(
        RaisedRow(
            name=alert.name,
            pool=alert.pool,
            text=alert.text,
            value=_value_of(alert.text, alert.value),
            began_at=datetime.datetime.fromtimestamp(alert.began_at, tz=datetime.UTC),
        )
        for alert in alerts
    )


def present_rules(
    rules: Iterable[Any], raised: Sequence[RaisedAlert] | None, *, pools: Collection[str]
) -> tuple[RuleRow, ...]:
    """All rules, with those marked whose alert goes on. `raised` is None where that is not known; `pools` are those
    that are configured."""
    on = {alert.rule_id for alert in raised or ()}
    return tuple(
        RuleRow(
            id=rule.pk,
            name=rule.name,
            pool=rule.pool,
            text=Condition(
                metric=rule.metric, bound=rule.bound, for_seconds=rule.for_seconds, is_above=rule.is_above
            ).describe(),
            host=urlsplit(rule.webhook_url).netloc if rule.webhook_url else "",
            is_enabled=rule.is_enabled,
            rests=bool(rule.pool) and rule.pool not in pools,
            is_raised=None if raised is None else rule.pk in on,
        )
        for rule in rules
    )


def present_alerts(alerts: Iterable[Any]) -> tuple[AlertRow, ...]:
    """Stored alerts, the newest first."""
    return tuple(_present_alert(alert) for alert in alerts)


def _present_alert(alert: Any) -> AlertRow:
    notices = list(alert.notices.all())
    return AlertRow(
        name=alert.name,
        pool=alert.pool,
        text=alert.text,
        value=_value_of(alert.text, alert.value),
        began_at=alert.began_at,
        lasted="" if alert.ended_at is None else lasted_in_words((alert.ended_at - alert.began_at).total_seconds()),
        why_ended=alert.why_ended,
        told="; ".join(_told(notice) for notice in notices),
        is_untold=any(notice.delivered_at is None and notice.problem for notice in notices),
    )


def lasted_in_words(seconds: float) -> str:
    """A duration for people: `45 s`, `12 min`, `3 h 5 min`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _told(notice: Any) -> str:
    what = "beginning" if notice.kind == "began" else "end"
    if notice.delivered_at is not None:
        return f"{what} told"
    if notice.due_at is None:
        return f"{what} given up: {notice.problem}"
    return f"{what} to be told" + (f" again: {notice.problem}" if notice.problem else "")


def _value_of(text: str, value: float) -> str:
    """The value in the unit of the condition, whose metric's title begins its text."""
    metric = next((metric for metric in METRICS.values() if text.startswith(f"{metric.title} ")), None)
    return f"{value:.4g}" if metric is None else told(value, metric.unit)


def _unit(metric: Metric) -> str:
    return _UNITS.get(metric.unit, metric.unit)
