"""The console's roles: Django groups, each with the permissions that `dashboard.permissions` asks for."""

from __future__ import annotations

import dataclasses
from functools import reduce
from operator import or_
from typing import Any

from django.contrib.auth.models import Group, Permission
from django.db import transaction
from django.db.models import Q

from dashboard.permissions import (
    ADMINISTERING,
    ADMINISTERING_USERS,
    AUDITING,
    EXPERIMENTING,
    PROMPTING,
    STEERING,
    VIEWING_LAB,
    VIEWING_REQUESTS,
    VIEWING_TEXTS,
)

_READING = ("tuning.view_pool", "tuning.view_tunablesversion", VIEWING_LAB)
_VIEWING_TENANTS = (
    "admission.view_tenant",
    "admission.view_apikey",
    "admission.view_quotaversion",
    "admission.view_usage",
)
_CHANGING_TENANTS = (
    ADMINISTERING,
    "admission.add_tenant",
    "admission.add_apikey",
    "admission.change_apikey",
    "admission.add_quotaversion",
)
ROLES: dict[str, tuple[str, ...]] = {
    "viewer": _READING,
    # A viewer sees figures and no names; who steers must see whom it hits, but not what they wrote.
    "operator": (*_READING, STEERING, EXPERIMENTING, PROMPTING, VIEWING_REQUESTS),
    "admin": (
        *_READING,
        STEERING,
        EXPERIMENTING,
        PROMPTING,
        *_VIEWING_TENANTS,
        AUDITING,
        VIEWING_REQUESTS,
        VIEWING_TEXTS,
        *_CHANGING_TENANTS,
        ADMINISTERING_USERS,
    ),
    "auditor": (*_READING, *_VIEWING_TENANTS, AUDITING, VIEWING_REQUESTS, VIEWING_TEXTS),
}
"""What each role may do. All may watch, which goes by the account's staff flag."""

SUPERUSER = "superuser"
"""What the first operator is, who may do everything."""


@dataclasses.dataclass(frozen=True, slots=True)
class Capability:
    """Something that a role may do, in words, and the permissions that it takes."""

    words: str
    permissions: tuple[str, ...]

    def is_of(self, role: str) -> bool:
        """Whether a role may do it."""
        return set(self.permissions) <= set(ROLES[role])


CAPABILITIES = (
    Capability("See Live, Steps, Tuning, Lab, Fleet and Alerts", _READING),
    Capability("Change tunables and alert rules; drain and restart engines", (STEERING,)),
    Capability("Load-test, sweep and experiment in the Lab; change workloads", (EXPERIMENTING,)),
    Capability("Ask the models: playground, prompt box, sample traffic", (PROMPTING,)),
    Capability("See requests, those that run too; end one, where it may steer", (VIEWING_REQUESTS,)),
    Capability("Read the prompts and answers that are kept", (VIEWING_TEXTS,)),
    Capability("See tenants, their keys, quotas and usage", _VIEWING_TENANTS),
    Capability("Make and change tenants, their keys and quotas", _CHANGING_TENANTS),
    Capability("Read the audit", (AUDITING,)),
    Capability("Make and change users of this console", (ADMINISTERING_USERS,)),
)
"""What the permissions of the roles mean, each once."""


def ensure_roles() -> None:
    """Make the groups, and give each just the permissions of its role. Idempotent; blocking. Needs a migrated database.

    Users keep the groups and further permissions that they have; other groups are left alone.
    """
    with transaction.atomic():
        for role, permissions in ROLES.items():
            group, _ = Group.objects.get_or_create(name=role)
            group.permissions.set(_permissions(permissions))


def role_of(user: Any) -> str:
    """What a user may do, in a word: a role, several where an account has more than one, `superuser`, or nothing for
    one without a role."""
    if user.is_superuser:
        return SUPERUSER
    names = {group.name for group in user.groups.all()}
    return ", ".join(role for role in ROLES if role in names)


def _permissions(names: tuple[str, ...]) -> list[Permission]:
    wanted = (name.split(".", 1) for name in names)
    found = list(
        Permission.objects.filter(
            reduce(or_, (Q(content_type__app_label=label, codename=codename) for label, codename in wanted))
        )
    )
    assert len(found) == len(names), "every permission of a role exists once the database is migrated"
    return found
