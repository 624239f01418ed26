"""Roles: what each of the console's groups may do."""

from __future__ import annotations

import io
from typing import Any

import pytest
from django.contrib.auth import authenticate
from django.contrib.auth.models import Group, Permission, User
from django.core.management import CommandError, call_command

from dashboard.permissions import may_administer, may_audit, may_prompt, may_steer, may_watch
from dashboard.roles import CAPABILITIES, ROLES, ensure_roles
from dashboard.users import make_user as make_console_user
from serving.contracts.actors import COMMAND_LINE
from serving.contracts.errors import InvalidValue
from tests.dashboard.harness import make_user

pytestmark = pytest.mark.django_db


def rights(user: Any) -> tuple[bool, bool, bool, bool, bool]:
    """Whether the user may watch, steer, ask the models, administer and audit."""
    return may_watch(user), may_steer(user), may_prompt(user), may_administer(user), may_audit(user)


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        ("viewer", (True, False, False, False, False)),
        ("operator", (True, True, True, False, False)),
        ("admin", (True, True, True, True, True)),
        ("auditor", (True, False, False, False, True)),
    ],
)
def test_each_role_may_do_its_own_and_no_more(role: str, expected: tuple[bool, ...]) -> None:
    ensure_roles()
    make_console_user("ann", role=role, author=COMMAND_LINE)
    user = User.objects.get(username="ann")
    assert rights(user) == expected
    user.is_staff = False
    assert rights(user) == (False,) * 5
    user.is_staff, user.is_active = True, False
    assert rights(user) == (False,) * 5


def test_an_operator_without_a_role_watches_and_a_superuser_does_all() -> None:
    ensure_roles()
    assert rights(make_user("ben", may_steer=False, may_prompt=False)) == (True, False, False, False, False)
    assert rights(User.objects.create_superuser("root", password="a-long-password")) == (True,) * 5


def test_roles_are_made_once_and_kept_to_what_they_mean() -> None:
    ensure_roles()
    make_console_user("ann", role="viewer", author=COMMAND_LINE)
    viewer = Group.objects.get(name="viewer")
    viewer.permissions.add(Permission.objects.get(codename="change_tenant"))
    own = Group.objects.create(name="night shift")
    own.permissions.add(Permission.objects.get(codename="add_tunablesversion"))
    ensure_roles()
    assert set(Group.objects.values_list("name", flat=True)) == {*ROLES, "night shift"}
    assert rights(User.objects.get(username="ann")) == (True, False, False, False, False)
    User.objects.get(username="ann").groups.add(own)
    assert rights(User.objects.get(username="ann")) == (True, True, False, False, False)


def test_command_makes_a_user_who_can_sign_in() -> None:
    ensure_roles()
    output = io.StringIO()
    call_command("createuser", "ann", role="auditor", stdout=output)
    user = authenticate(username="ann", password=output.getvalue().strip())
    assert user is not None
    assert rights(user) == (True, False, False, False, True)
    with pytest.raises(CommandError, match="no user has yet"):
        call_command("createuser", "ann", role="viewer")
    with pytest.raises(CommandError, match="role"):
        call_command("createuser", "ben", role="king")


@pytest.mark.parametrize("name", ["", " ", "x" * 151, "a\0b"])
def test_names_that_cannot_be_stored_are_refused(name: str) -> None:
    ensure_roles()
    with pytest.raises(InvalidValue, match="name"):
        make_console_user(name, role="viewer", author=COMMAND_LINE)
    assert not User.objects.exists()


def test_every_permission_of_a_role_is_told_in_words_once() -> None:
    told = [permission for capability in CAPABILITIES for permission in capability.permissions]
    assert len(told) == len(set(told))
    assert set(told) == {permission for permissions in ROLES.values() for permission in permissions}
    for role, permissions in ROLES.items():
        in_words = {one for capability in CAPABILITIES if capability.is_of(role) for one in capability.permissions}
        assert in_words == set(permissions), role
