"""The console's roles: Django groups, each with the permissions that `dashboard.permissions` asks for."""

from __future__ import annotations

import secrets
from functools import reduce
from operator import or_
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.db import IntegrityError, transaction
from django.db.models import Q

from dashboard.permissions import ADMINISTERING, AUDITING, PROMPTING, STEERING, VIEWING_REQUESTS, VIEWING_TEXTS
from serving.audit.services import record
from serving.contracts.actors import COMMAND_LINE
from serving.contracts.errors import InvalidValue

_READING = ("tuning.view_pool", "tuning.view_tunablesversion")
_READING_TENANTS = (
    "admission.view_tenant",
    "admission.view_apikey",
    "admission.view_quotaversion",
    "admission.view_usage",
    AUDITING,
)
ROLES: dict[str, tuple[str, ...]] = {
    "viewer": _READING,
    # A viewer sees figures and no names; who steers must see whom it hits, but not what they wrote.
    "operator": (*_READING, STEERING, PROMPTING, VIEWING_REQUESTS),
    "admin": (
        *_READING,
        STEERING,
        PROMPTING,
        *_READING_TENANTS,
        VIEWING_REQUESTS,
        VIEWING_TEXTS,
        ADMINISTERING,
        "admission.add_tenant",
        "admission.add_apikey",
        "admission.change_apikey",
        "admission.add_quotaversion",
    ),
    "auditor": (*_READING, *_READING_TENANTS, VIEWING_REQUESTS, VIEWING_TEXTS),
}
"""What each role may do. All may watch, which goes by the account's staff flag."""

_LONGEST_NAME = 150


def ensure_roles() -> None:
    """Make the groups, and give each just the permissions of its role. Idempotent; blocking. Needs a migrated database.

    Users keep the groups and further permissions that they have; other groups are left alone.
    """
    with transaction.atomic():
        for role, permissions in ROLES.items():
            group, _ = Group.objects.get_or_create(name=role)
            group.permissions.set(_permissions(permissions))


def create_console_user(name: str, *, role: str) -> str:
    """Make a user of the console with that role and give the password, which is kept nowhere. Blocking.

    Raises `InvalidValue` for a role that is none, and a name that is taken or cannot be one.
    """
    if role not in ROLES:
        raise InvalidValue("role", role, "one of " + ", ".join(ROLES))
    users: Any = get_user_model().objects
    if not name.strip() or len(name) > _LONGEST_NAME or "\0" in name:
        raise InvalidValue("name", name, f"a name of 1 to {_LONGEST_NAME} characters, none of them NUL")
    password = secrets.token_urlsafe(18)
    ensure_roles()
    try:
        with transaction.atomic():
            user = users.create_user(name, password=password, is_staff=True)
            user.groups.add(Group.objects.get(name=role))
            record("user made", actor=COMMAND_LINE, subject_kind="user", subject=name, changes={"role": [None, role]})
    except IntegrityError:
        raise InvalidValue("name", name, "a name that no user has yet") from None
    return password


def _permissions(names: tuple[str, ...]) -> list[Permission]:
    wanted = (name.split(".", 1) for name in names)
    found = list(
        Permission.objects.filter(
            reduce(or_, (Q(content_type__app_label=label, codename=codename) for label, codename in wanted))
        )
    )
    assert len(found) == len(names), "every permission of a role exists once the database is migrated"
    return found
