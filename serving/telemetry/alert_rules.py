"""Alert rules: reading and changing them. Blocking: async code calls these through `serving.threads.in_thread`."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import QuerySet

from serving.audit.actions import Action
from serving.audit.services import record
from serving.contracts.actors import Author
from serving.contracts.errors import InvalidValue, NameTaken, NothingChanges, RuleNotFound, StaleVersion, UnknownField
from serving.contracts.ids import POOL_NAME
from serving.contracts.texts import is_storable
from serving.telemetry.alert_models import AlertNotice, AlertRule
from serving.telemetry.alerts import Rule
from serving.telemetry.conditions import Condition
from serving.telemetry.webhook_signing import fingerprint_of, new_salt, secret_of
from serving.telemetry.webhooks import check_url

LONGEST_NAME = 100
MOST_RULES = 200
FIELDS = ("name", "pool", "metric", "is_above", "bound", "for_seconds", "webhook_url", "is_enabled")
_CONDITION = ("metric", "is_above", "bound", "for_seconds")


def rules_in_force() -> list[Rule]:
    """The rules that the monitor watches."""
    return [
        Rule(id=rule.pk, revision=rule.revision, name=rule.name, pool=rule.pool, condition=condition_of(rule))
        for rule in AlertRule.objects.filter(is_enabled=True)
    ]


def all_rules() -> list[AlertRule]:
    """All rules, by name."""
    return list(AlertRule.objects.all())


def find_rule(rule_id: int) -> AlertRule:
    """The rule with that id; raises `RuleNotFound`."""
    return _find(AlertRule.objects.all(), rule_id)


def condition_of(rule: AlertRule) -> Condition:
    """What a rule holds a pool to."""
    return Condition(**{field: getattr(rule, field) for field in _CONDITION})


def create_rule(values: Mapping[str, Any], *, author: Author, allowed_hosts: Collection[str]) -> AlertRule:
    """Store a new rule of these `FIELDS`. Raises `UnknownField`, `InvalidValue` and `NameTaken`."""
    rule = AlertRule(**_known(values))
    _check(rule, allowed_hosts=allowed_hosts)
    with transaction.atomic():
        if AlertRule.objects.count() >= MOST_RULES:
            raise InvalidValue("name", rule.name, f"left out: there may be {MOST_RULES} rules")
        _save(rule)
        _write_down("alert rule made", rule, author, {field: [None, getattr(rule, field)] for field in FIELDS})
    return rule


def change_rule(
    rule_id: int,
    changes: Mapping[str, Any],
    *,
    author: Author,
    allowed_hosts: Collection[str],
    based_on: int | None = None,
) -> AlertRule:
    """Change some of a rule's `FIELDS`. Another webhook gets another secret.

    Raises `RuleNotFound`, `UnknownField`, `InvalidValue`, `NameTaken`, `NothingChanges`, and `StaleVersion` where
    `based_on` is given and no longer its revision.
    """
    with transaction.atomic():
        rule = _find(AlertRule.objects.select_for_update(), rule_id)
        _check_revision(rule, based_on)
        differences = {
            field: [before, value]
            for field, value in _known(changes).items()
            if (before := getattr(rule, field)) != value
        }
        if not differences:
            raise NothingChanges("nothing would change: the rule has these values")
        for field, (_, value) in differences.items():
            setattr(rule, field, value)
        if "webhook_url" in differences:  # Who had the old address knows the old secret.
            rule.webhook_salt = new_salt()
        rule.revision += 1
        _check(rule, allowed_hosts=allowed_hosts)
        _save(rule)
        _write_down("alert rule changed", rule, author, differences)
    return rule


def renew_webhook_secret(rule_id: int, *, author: Author, based_on: str) -> AlertRule:
    """Sign what the rule posts with another secret from now on. Its alerts go on.

    Raises `RuleNotFound`, `InvalidValue` where it has no webhook, and `StaleVersion` where `based_on` is no longer the
    fingerprint of its secret.
    """
    with transaction.atomic():
        rule = _find(AlertRule.objects.select_for_update(), rule_id)
        if not rule.webhook_url:
            raise InvalidValue("webhook_url", "", "an address: without one there is nothing to sign")
        if based_on != fingerprint_of(rule.webhook_salt):
            raise StaleVersion("somebody renewed this secret meanwhile, or changed the address")
        rule.webhook_salt = new_salt()
        rule.save(update_fields=["webhook_salt"])
        # What is owed beyond the rule, or told to this address once the rule names another, is signed with it too.
        told = AlertNotice.objects.filter(alert__rule=rule, url=rule.webhook_url)
        told.update(webhook_salt=rule.webhook_salt)
        _write_down("webhook secret renewed", rule, author, {})
    return rule


def webhook_secret(rule: AlertRule) -> str:
    """What the rule's webhook is signed with; to be shown once, and kept nowhere."""
    return secret_of(rule.webhook_salt)


def delete_rule(rule_id: int, *, author: Author, based_on: int | None = None) -> AlertRule:
    """Delete a rule, and give what it was; its alerts stay.

    Raises `RuleNotFound`, and `StaleVersion` where `based_on` is given and no longer its revision.
    """
    with transaction.atomic():
        rule = _find(AlertRule.objects.select_for_update(), rule_id)
        _check_revision(rule, based_on)
        AlertRule.objects.filter(pk=rule.pk).delete()
        _write_down("alert rule deleted", rule, author, {})
    return rule


def _find(rules: QuerySet[AlertRule], rule_id: int) -> AlertRule:
    rule = rules.filter(pk=rule_id).first() if 0 < rule_id < 2**63 else None
    if rule is None:
        raise RuleNotFound("there is no alert rule with this id")
    return rule


def _write_down(action: Action, rule: AlertRule, author: Author, changes: Mapping[str, list[Any]]) -> None:
    record(action, actor=author, subject_kind="alert rule", subject=rule.name, pool=rule.pool, changes=changes)


def _check_revision(rule: AlertRule, based_on: int | None) -> None:
    if based_on is not None and based_on != rule.revision:
        raise StaleVersion("somebody changed this rule meanwhile: look at it and try again")


def _known(values: Mapping[str, Any]) -> dict[str, Any]:
    for field in values:
        if field not in FIELDS:
            raise UnknownField(f"there is no field {field[:100]!r}; there are {', '.join(FIELDS)}", param=field)
    return dict(values)


def _check(rule: AlertRule, *, allowed_hosts: Collection[str]) -> None:
    if not rule.name.strip() or not is_storable(rule.name, longest=LONGEST_NAME):
        raise InvalidValue("name", rule.name, f"a text of 1 to {LONGEST_NAME} characters, without NUL and API keys")
    if rule.pool and POOL_NAME.fullmatch(rule.pool) is None:
        raise InvalidValue("pool", rule.pool, "empty (each pool), or the name of a pool")
    for field in ("bound", "for_seconds"):
        value = getattr(rule, field)
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise InvalidValue(field, value, "a number")
    condition_of(rule).check()
    if rule.webhook_url:
        check_url(rule.webhook_url, allowed_hosts=allowed_hosts)


def _save(rule: AlertRule) -> None:
    try:
        with transaction.atomic():
            rule.save()
    except IntegrityError:
        raise NameTaken(f"there is an alert rule named {rule.name!r} already", param="name") from None
