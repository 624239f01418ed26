"""Who is at the other end of a websocket or a prompt, asked of the database anew each time: a cookie is as good as its
session."""

from __future__ import annotations

import dataclasses
from importlib import import_module
from typing import cast

from django.conf import settings
from django.contrib.auth import get_user
from django.contrib.auth.models import AbstractBaseUser
from django.http import HttpRequest

from dashboard.permissions import may_prompt, may_steer, may_watch
from dashboard.user_reading import must_change_password
from serving.contracts.errors import DomainError


class SignedOut(DomainError):
    """There is no such session any more, or its user's account is closed."""

    code = "signed_out"

    def __init__(self) -> None:
        super().__init__("the session ended: sign in again")


class NotAllowed(DomainError):
    """The session's user may not do this: not even watch, where nothing else is said."""

    code = "permission_denied"

    def __init__(self, message: str = "operators only") -> None:
        super().__init__(message)


@dataclasses.dataclass(frozen=True, slots=True)
class Operator:
    """A user who may watch."""

    name: str
    may_steer: bool


def read_operator(session_key: str | None) -> Operator:
    """The operator whose session this is, as the database knows both now. Blocking.

    Raises `SignedOut` and `NotAllowed`. The session's life is not prolonged by it.
    """
    user = read_watcher(session_key)
    return Operator(user.get_username(), may_steer(user))


def check_prompter(session_key: str | None) -> str:
    """The name of the session's user, who may ask the models; raises `SignedOut` and `NotAllowed`. Blocking."""
    user = read_watcher(session_key)
    if not may_prompt(user):
        raise NotAllowed("you may watch, but not ask the model")
    return user.get_username()


def read_watcher(session_key: str | None) -> AbstractBaseUser:
    """As `read_operator`, without asking what else the user may do."""
    request = HttpRequest()
    request.session = import_module(settings.SESSION_ENGINE).SessionStore(session_key)
    user = get_user(request)
    if not user.is_authenticated:
        raise SignedOut
    if not may_watch(user):
        raise NotAllowed
    if must_change_password(user):
        raise NotAllowed("choose a password of your own first")
    return cast(AbstractBaseUser, user)
