"""Who is at the other end of a websocket, asked of the database anew each time: a cookie is as good as its session."""

from __future__ import annotations

import dataclasses
from importlib import import_module

from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest

from dashboard.permissions import may_steer, may_watch


class SignedOut(Exception):
    """There is no such session any more, or its user's account is closed."""


class NotAllowed(Exception):
    """The session's user may not watch."""


@dataclasses.dataclass(frozen=True, slots=True)
class Operator:
    """A user who may watch."""

    name: str
    may_steer: bool


def read_operator(session_key: str | None) -> Operator:
    """The operator whose session this is, as the database knows both now. Blocking.

    Raises `SignedOut` and `NotAllowed`. The session's life is not prolonged by it.
    """
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    user = get_user(request)
    if not user.is_authenticated:
        raise SignedOut
    if not may_watch(user):
        raise NotAllowed
    return Operator(user.get_username(), may_steer(user))
