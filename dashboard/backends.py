"""How Django finds the console's users."""

from __future__ import annotations

from django.contrib.auth.backends import ModelBackend
from django.contrib.auth.models import User
from django.db.models import QuerySet


class ConsoleBackend(ModelBackend):
    """As Django's own, but a session's user comes with the account that each command asks about, in one query."""

    def get_user(self, user_id: int) -> User | None:
        """The user of that id, unless it may not sign in. Blocking."""
        return self._if_open(_with_account(user_id).first())

    async def aget_user(self, user_id: int) -> User | None:
        """As `get_user`."""
        return self._if_open(await _with_account(user_id).afirst())

    def _if_open(self, user: User | None) -> User | None:
        return user if user is not None and self.user_can_authenticate(user) else None


def _with_account(user_id: int) -> QuerySet[User]:
    return User.objects.filter(pk=user_id).select_related("console_account")
