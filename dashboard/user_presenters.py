"""What the pages about users show. Pure functions."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable, Mapping
from typing import Any

from dashboard.models import ConsoleAccount
from dashboard.roles import CAPABILITIES, ROLES, SUPERUSER, role_of
from dashboard.user_reading import OpenSession


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UserRow:
    """One user. `role` is in a word; `choices` are the roles to choose from, with the one that a form is filled with.
    `signed_in_at` is None for who never signed in, `changed_at` for who was never changed."""

    id: int
    name: str
    role: str
    is_superuser: bool
    has_one_role: bool
    choices: tuple[RoleChoice, ...]
    other_groups: str
    is_enabled: bool
    may_watch: bool
    must_change_password: bool
    num_sessions: int
    signed_in_at: datetime.datetime | None
    made_at: datetime.datetime
    changed_by: str
    changed_at: datetime.datetime | None
    revision: int


@dataclasses.dataclass(frozen=True, slots=True)
class RoleChoice:
    """A role to choose."""

    name: str
    is_chosen: bool


@dataclasses.dataclass(frozen=True, slots=True)
class CapabilityRow:
    """Something that some roles may do: whether each of `ROLES` may."""

    words: str
    may: tuple[bool, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RolesTable:
    """What each role may do; `own` is that of whose page it is, where one is meant."""

    names: tuple[str, ...]
    rows: tuple[CapabilityRow, ...]
    own: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """An open session; `is_this` marks the one in which it is shown."""

    began_at: datetime.datetime | None
    address: str
    ends_at: datetime.datetime
    is_this: bool


def present_user(user: Any, account: ConsoleAccount, *, num_sessions: int, chosen: str | None = None) -> UserRow:
    """A stored user, with `chosen` as the role that a form was filled with."""
    role = role_of(user)
    groups = sorted(group.name for group in user.groups.all() if group.name not in ROLES)
    return UserRow(
        id=user.pk,
        name=user.get_username(),
        role=role,
        is_superuser=role == SUPERUSER,
        has_one_role=role in ROLES,
        choices=present_choices(chosen or role),
        other_groups=", ".join(groups),
        is_enabled=user.is_active,
        may_watch=user.is_staff,
        must_change_password=account.must_change_password,
        num_sessions=num_sessions,
        signed_in_at=user.last_login,
        made_at=user.date_joined,
        changed_by=account.changed_by,
        changed_at=account.changed_at,
        revision=account.revision,
    )


def present_users(
    users: Iterable[Any], accounts: Mapping[int, ConsoleAccount], num_sessions: Mapping[int, int]
) -> tuple[UserRow, ...]:
    """A row a user."""
    return tuple(present_user(user, accounts[user.pk], num_sessions=num_sessions.get(user.pk, 0)) for user in users)


def present_choices(chosen: str) -> tuple[RoleChoice, ...]:
    """The roles to choose from."""
    return tuple(RoleChoice(role, role == chosen) for role in ROLES)


def present_roles(*, own: str = "") -> RolesTable:
    """What each role may do, from the permissions that it has."""
    rows = tuple(CapabilityRow(one.words, tuple(one.is_of(role) for role in ROLES)) for one in CAPABILITIES)
    return RolesTable(names=tuple(ROLES), rows=rows, own=own)


def present_sessions(sessions: Iterable[OpenSession], *, this: str | None) -> tuple[SessionRow, ...]:
    """A row a session."""
    return tuple(
        SessionRow(began_at=one.began_at, address=one.address, ends_at=one.ends_at, is_this=one.key == this)
        for one in sessions
    )
