"""Where sessions are kept: in the database, as Django does, each with the user whose it is."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.backends.db import SessionStore as DatabaseStore


class SessionStore(DatabaseStore):
    """Owns one session, on the thread or loop of its request."""

    @classmethod
    def get_model_class(cls) -> Any:
        """The table of sessions."""
        # Not earlier: Django loads a store before its applications are ready.
        from dashboard.models import ConsoleSession

        return ConsoleSession

    def create_model_instance(self, data: dict[str, Any]) -> Any:
        """The row to store, under the user whose session it is."""
        return _with_user(super().create_model_instance(data), data)

    async def acreate_model_instance(self, data: dict[str, Any]) -> Any:
        """As `create_model_instance`."""
        return _with_user(await super().acreate_model_instance(data), data)


def _with_user(row: Any, data: dict[str, Any]) -> Any:
    user_id = data.get(SESSION_KEY)
    row.user_id = None if user_id is None else int(user_id)
    return row
