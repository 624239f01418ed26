"""Making and changing those who may sign in to the console: what its pages and `manage.py createuser` do. Blocking.

Each change is written down in the audit with it. No password is kept, logged or written down: it is given once.
"""

from __future__ import annotations

import dataclasses
import secrets
from typing import Any

from django.contrib.auth.hashers import make_password
from django.contrib.auth.models import Group, User
from django.db import IntegrityError, transaction
from django.utils import timezone

from dashboard.models import LONGEST_AUTHOR, ConsoleAccount, ConsoleSession
from dashboard.permissions import may_administer_users
from dashboard.roles import ROLES, SUPERUSER, ensure_roles, role_of
from dashboard.sessions import NotAllowed
from dashboard.user_reading import account_of, administrators, find_user
from serving.admission.auditing import check_reason
from serving.audit.services import record
from serving.contracts.actors import Author, actor_of, name_of
from serving.contracts.errors import DomainError, InvalidValue, StaleVersion
from serving.contracts.texts import is_storable

LONGEST_NAME = 150
_LOCKED_ROLE = "admin"


class LastAdministrator(DomainError):
    """Without this user nobody could make and change users any more."""

    code = "last_administrator"

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} is the last one who may change users: make another admin first", param="role")


@dataclasses.dataclass(frozen=True, slots=True)
class Made:
    """A user who was made, and the password, which is kept nowhere."""

    user_id: int
    password: str = dataclasses.field(repr=False)


def make_user(name: str, *, role: str, author: Author, reason: str = "") -> Made:
    """Make a user of the console with that role. The password is to be changed at the first sign-in.

    Raises `InvalidValue` for a role that is none and a name that is taken or cannot be one, and `NotAllowed`.
    """
    _check_role(role)
    # As Django reads it at each sign-in: that may be longer, have blanks around it or be an API key.
    name = User.normalize_username(name)
    _check_name(name)
    check_reason(reason)
    password = _new_password()
    user = User(username=name, password=make_password(password), is_staff=True)
    ensure_roles()
    try:
        with transaction.atomic():
            _lock(author)
            # Names that differ in case alone would be taken for one another. SQLite knows no case beyond ASCII's.
            if name.casefold() in map(str.casefold, User.objects.values_list("username", flat=True)):
                raise IntegrityError
            user.save()
            user.groups.add(Group.objects.get(name=role))
            _note_change(user, author=author, must_change_password=True)
            record(
                "user made",
                actor=author,
                subject_kind="user",
                subject=user.username,
                changes={"role": [None, role]},
                reason=reason,
            )
    except IntegrityError:
        raise InvalidValue("name", name, "a name that no user has yet, in whatever case") from None
    return Made(user.pk, password)


def change_user(
    user_id: int, *, enabled: bool, seen: int | None, author: Author, role: str | None = None, reason: str = ""
) -> bool:
    """Give a user another role (None: the one there is) and open or close the account; whether anything had to change.

    It counts at once for every page and command; who is disabled is signed out everywhere. `seen` is the account's
    revision on which this is based. Raises `InvalidValue`, `LastAdministrator`, `NotAllowed`, `StaleVersion` and
    `UserNotFound`; nothing is changed then.
    """
    if role is not None:
        _check_role(role)
    check_reason(reason)
    with transaction.atomic():
        user = _locked_user(user_id, seen=seen, author=author)
        changes: dict[str, list[Any]] = {}
        if role is not None and role != role_of(user):
            changes["role"] = [role_of(user), role]
            _give_role(user, role)
        if enabled != user.is_active:
            changes["enabled"] = [user.is_active, enabled]
            user.is_active = enabled
        if not changes:
            return False
        user.save(update_fields=["is_active", "is_staff"])
        if not administrators().exists():
            raise LastAdministrator(user.username)
        if not enabled:
            _delete_sessions(user)
        _note_change(user, author=author)
        record("user changed", actor=author, subject_kind="user", subject=user.username, changes=changes, reason=reason)
    return True


def set_new_password(user_id: int, *, seen: int | None, author: Author) -> str:
    """Give a user another password, to be changed at the next sign-in, and end all sessions; gives the password.

    Raises as `change_user`, and `NotAllowed` for one's own and, by others, for a superuser's.
    """
    password = _new_password()
    hashed = make_password(password)
    with transaction.atomic():
        user = _locked_user(user_id, seen=seen, author=author)
        if not may_set_password(user, author=author):
            raise NotAllowed("your own password is changed with the old one, and a superuser's by another superuser")
        user.password = hashed
        user.save(update_fields=["password"])
        _delete_sessions(user)
        _note_change(user, author=author, must_change_password=True)
        record("password set", actor=author, subject_kind="user", subject=user.username)
    return password


def may_set_password(user: User, *, author: Author) -> bool:
    """Whether it would be let: one's own is changed with the old one, and who is no superuser must not become one."""
    return user.username != name_of(author) and (not user.is_superuser or _is_superuser(author))


def end_sessions(user_id: int, *, author: Author) -> int:
    """Sign a user out everywhere; gives how many sessions that ended. Raises `NotAllowed` and `UserNotFound`."""
    with transaction.atomic():
        _lock(author)
        return _end_sessions(find_user(user_id), author=author)


def end_other_sessions(user_id: int, *, author: Author, kept: str | None) -> int:
    """Sign a user out everywhere but in the session of that key; gives how many sessions that ended."""
    with transaction.atomic():
        return _end_sessions(find_user(user_id), author=author, kept=kept)


def change_own_password(user: Any, password: str, *, author: Author, kept: str | None) -> None:
    """Give the user, whose old password was checked, that new one, in the database and in `user`; all sessions end but
    the one of the key `kept`. Raises `StaleVersion` where the password was set anew since it was checked."""
    hashed = make_password(password)
    with transaction.atomic():
        if not User.objects.filter(pk=user.pk, password=user.password, is_active=True).update(password=hashed):
            raise StaleVersion("your password was changed meanwhile, from elsewhere")
        stored = find_user(user.pk)
        _delete_sessions(stored, kept=kept)
        _note_change(stored, author=author, must_change_password=False)
        record("password changed", actor=author, subject_kind="user", subject=stored.username)
    user.password = hashed


def _new_password() -> str:
    return secrets.token_urlsafe(18)


def _check_role(role: str) -> None:
    if role not in ROLES:
        raise InvalidValue("role", role, "one of " + ", ".join(ROLES))


def _check_name(name: str) -> None:
    # Django leaves out the blanks around a name that is typed to sign in.
    if not name or name != name.strip() or not name.isprintable() or not is_storable(name, longest=LONGEST_NAME):
        bounds = f"1 to {LONGEST_NAME} printable characters, with no blanks around them and no API key among them"
        raise InvalidValue("name", name, bounds)


def _lock(author: Author) -> None:
    """Let one at a time change users: of two who take the last rights from each other, the second is refused."""
    # SQLite's transactions are for writing from their start, and so one at a time.
    list(Group.objects.select_for_update().filter(name=_LOCKED_ROLE))
    who = actor_of(author)
    if who.kind == "user":
        user = User.objects.filter(username=who.name).first()
        if user is None or not may_administer_users(user):
            raise NotAllowed("you may not change users any more")


def _locked_user(user_id: int, *, seen: int | None, author: Author) -> User:
    _lock(author)
    user = find_user(user_id)
    account = account_of(user)
    if seen != account.revision:
        by = f", last by {account.changed_by}" if account.changed_by else ""
        raise StaleVersion(f"{user.username} was changed since this page was loaded{by}")
    return user


def _is_superuser(author: Author) -> bool:
    who = actor_of(author)
    return who.kind != "user" or User.objects.filter(username=who.name, is_superuser=True).exists()


def _give_role(user: User, role: str) -> None:
    if user.is_superuser:
        raise InvalidValue("role", role, f"left as it is: a {SUPERUSER} may do everything, and can be disabled")
    user.groups.remove(*Group.objects.filter(name__in=ROLES))
    user.groups.add(Group.objects.get(name=role))
    user.is_staff = True


def _end_sessions(user: User, *, author: Author, kept: str | None = None) -> int:
    num_ended = _delete_sessions(user, kept=kept)
    if num_ended:
        record("sessions ended", actor=author, subject_kind="user", subject=user.username)
    return num_ended


def _delete_sessions(user: User, *, kept: str | None = None) -> int:
    found = ConsoleSession.objects.filter(user_id=user.pk)
    if kept is not None:
        found = found.exclude(pk=kept)
    num_deleted, _ = found.delete()
    return num_deleted


def _note_change(user: User, *, author: Author, must_change_password: bool | None = None) -> None:
    account, _ = ConsoleAccount.objects.select_for_update().get_or_create(user_id=user.pk)
    account.revision += 1
    account.changed_by, account.changed_at = name_of(author)[:LONGEST_AUTHOR], timezone.now()
    if must_change_password is not None:
        account.must_change_password = must_change_password
    account.save()
