"""Reading who may sign in to the console. Blocking."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Iterable
from typing import Any

from django.contrib.auth.models import User
from django.db.models import Count, QuerySet
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from dashboard.models import ConsoleAccount, ConsoleSession
from dashboard.permissions import ADMINISTERING_USERS
from serving.contracts.errors import DomainError

SIGNED_IN_AT = "signed_in_at"
SIGNED_IN_FROM = "signed_in_from"
"""Where a session says when it began, and from which address."""

_MOST_SESSIONS = 200


class UserNotFound(DomainError):
    """No user has this id."""

    code = "user_not_found"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OpenSession:
    """A session of a user's that has not ended. `began_at` is None where it does not say."""

    key: str
    began_at: datetime.datetime | None
    address: str
    ends_at: datetime.datetime


def find_user(user_id: int) -> User:
    """The user of that id, with groups and account read. Raises `UserNotFound`."""
    user = _users().filter(pk=user_id).first()
    if user is None:
        raise UserNotFound(f"there is no user {user_id}")
    return user


def users_by_name(*, containing: str = "", after: str = "", limit: int) -> list[User]:
    """Users by name, at most `limit`: those whose name contains a text, whatever its case, after that name."""
    found = _users().order_by("username")
    if containing:
        found = found.filter(username__icontains=containing)
    if after:
        found = found.filter(username__gt=after)
    return list(found[:limit])


def account_of(user: User) -> ConsoleAccount:
    """What Footplate keeps of a user; where that is nothing yet, an account that is not stored."""
    kept: ConsoleAccount | None = getattr(user, "console_account", None)
    return kept or ConsoleAccount(user=user)


def must_change_password(user: Any) -> bool:
    """Whether somebody else knows the user's password, so that nothing else is done before it is changed."""
    return account_of(user).must_change_password


def administrators() -> QuerySet[User]:
    """Those who may make and change users, and whose accounts are open."""
    found: QuerySet[User] = User.objects.with_perm(ADMINISTERING_USERS)
    return found.filter(is_active=True, is_staff=True)


def num_sessions_of(users: Iterable[User]) -> dict[int, int]:
    """How many sessions of each of these users are open, by the user's id; those without any are left out."""
    mine = _open_sessions().filter(user_id__in=[user.pk for user in users])
    counted: Iterable[tuple[Any, int]] = mine.values_list("user_id").annotate(count=Count("pk"))
    return dict(counted)


def sessions_of(user: Any) -> list[OpenSession]:
    """A user's open sessions, the newest first; at most the 200 that end last."""
    found = _open_sessions().filter(user_id=user.pk).order_by("-expire_date")[:_MOST_SESSIONS]
    return sorted((_read_session(row) for row in found), key=lambda one: one.began_at or one.ends_at, reverse=True)


def _users() -> QuerySet[User]:
    return User.objects.select_related("console_account").prefetch_related("groups")


def _open_sessions() -> QuerySet[ConsoleSession]:
    return ConsoleSession.objects.filter(expire_date__gt=timezone.now())


def _read_session(row: ConsoleSession) -> OpenSession:
    data = row.get_decoded()
    return OpenSession(
        key=row.session_key,
        began_at=parse_datetime(data.get(SIGNED_IN_AT, "")),
        address=data.get(SIGNED_IN_FROM, ""),
        ends_at=row.expire_date,
    )
