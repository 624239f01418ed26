"""Who may do what in the console."""

from __future__ import annotations

from django.contrib.auth.models import AbstractBaseUser, AnonymousUser

STEERING = "tuning.add_tunablesversion"
"""Making a version is what changing tunables and rolling back amount to."""

User = AbstractBaseUser | AnonymousUser


def may_watch(user: User) -> bool:
    """Whether the user sees the console at all: an operator whose account is active."""
    return user.is_active and bool(getattr(user, "is_staff", False))


def may_steer(user: User) -> bool:
    """Whether the user may change tunables. Blocking: it may read the user's permissions."""
    return may_watch(user) and bool(getattr(user, "has_perm", lambda _: False)(STEERING))
