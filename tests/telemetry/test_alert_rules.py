"""Alert rules: what they may be, and who changed them."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
from django.apps import apps

from serving.audit.models import AuditEvent
from serving.contracts.errors import InvalidValue, NameTaken, NothingChanges, RuleNotFound, StaleVersion, UnknownField
from serving.telemetry import alert_rules
from serving.telemetry.alert_models import AlertRule
from serving.telemetry.webhook_signing import fingerprint_of
from tests.telemetry.alerting import HOSTS, store_rule


@pytest.fixture
def stored_rule(db: None) -> AlertRule:
    return store_rule()


def test_a_rule_is_watched_as_it_is_stored_and_every_change_is_audited(stored_rule: Any) -> None:
    (watched,) = alert_rules.rules_in_force()
    assert (watched.id, watched.revision, watched.condition.bound) == (stored_rule.pk, 1, 500.0)
    changed = alert_rules.change_rule(stored_rule.pk, {"bound": 700.0}, author="bob", allowed_hosts=HOSTS, based_on=1)
    assert (changed.revision, alert_rules.rules_in_force()[0].condition.bound) == (2, 700.0)
    alert_rules.change_rule(stored_rule.pk, {"is_enabled": False}, author="bob", allowed_hosts=HOSTS)
    assert alert_rules.rules_in_force() == []
    alert_rules.delete_rule(stored_rule.pk, author="ada")
    with pytest.raises(RuleNotFound):
        alert_rules.find_rule(stored_rule.pk)
    events = AuditEvent.objects.filter(subject_kind="alert rule").order_by("pk")
    assert [(event.action, event.actor) for event in events] == [
        ("alert rule made", "ada"),
        ("alert rule changed", "bob"),
        ("alert rule changed", "bob"),
        ("alert rule deleted", "ada"),
    ]
    assert events[1].changes == {"bound": [500.0, 700.0]}


@pytest.mark.parametrize(
    ("changes", "error", "field"),
    [
        ({"name": ""}, InvalidValue, "name"),
        ({"name": "nul\0"}, InvalidValue, "name"),
        ({"pool": "a b"}, InvalidValue, "pool"),
        ({"metric": "none"}, InvalidValue, "metric"),
        ({"bound": "ten"}, InvalidValue, "bound"),
        ({"bound": float("nan")}, InvalidValue, "bound"),
        ({"for_seconds": -1.0}, InvalidValue, "for_seconds"),
        ({"webhook_url": "https://evil.example"}, InvalidValue, "webhook_url"),
        ({"colour": "red"}, UnknownField, "colour"),
        ({"name": "other"}, NameTaken, "name"),
        ({"bound": 500.0}, NothingChanges, "nothing"),
    ],
)
def test_what_a_rule_cannot_be_is_refused_and_nothing_changes(
    stored_rule: Any, changes: dict[str, Any], error: type[Exception], field: str
) -> None:
    values = {"name": "other", "metric": "waiting", "bound": 1.0, "for_seconds": 0.0}
    alert_rules.create_rule(values, author="ada", allowed_hosts=HOSTS)
    with pytest.raises(error, match=field):
        alert_rules.change_rule(stored_rule.pk, changes, author="ada", allowed_hosts=HOSTS)
    assert alert_rules.find_rule(stored_rule.pk).revision == 1


def test_rules_of_before_webhooks_were_signed_get_a_secret_each(stored_rule: Any) -> None:
    values = {"name": "other", "metric": "waiting", "bound": 1.0, "for_seconds": 0.0}
    alert_rules.create_rule(values, author="ada", allowed_hosts=HOSTS)
    AlertRule.objects.update(webhook_salt="the table's one default")
    migration = importlib.import_module("serving.telemetry.migrations.0003_webhook_secrets")
    migration.give_each_rule_its_own(apps, None)
    assert len({alert_rules.webhook_secret(rule) for rule in alert_rules.all_rules()}) == 2


def test_no_secret_is_renewed_where_there_is_no_webhook_or_somebody_was_faster(stored_rule: Any) -> None:
    seen = fingerprint_of(stored_rule.webhook_salt)
    alert_rules.renew_webhook_secret(stored_rule.pk, author="ada", based_on=seen)
    with pytest.raises(StaleVersion, match="somebody renewed this secret meanwhile"):
        alert_rules.renew_webhook_secret(stored_rule.pk, author="bob", based_on=seen)
    alert_rules.change_rule(stored_rule.pk, {"webhook_url": ""}, author="ada", allowed_hosts=HOSTS)
    with pytest.raises(InvalidValue, match="webhook_url"):
        alert_rules.renew_webhook_secret(stored_rule.pk, author="ada", based_on=seen)
    (event,) = AuditEvent.objects.filter(action="webhook secret renewed")
    assert (event.actor, event.changes) == ("ada", {})


def test_of_two_who_change_a_rule_the_later_one_is_told(stored_rule: Any) -> None:
    alert_rules.change_rule(stored_rule.pk, {"bound": 1.0}, author="ada", allowed_hosts=HOSTS, based_on=1)
    with pytest.raises(StaleVersion):
        alert_rules.change_rule(stored_rule.pk, {"bound": 2.0}, author="bob", allowed_hosts=HOSTS, based_on=1)
