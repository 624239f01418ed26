"""Signing in and out, each written down in the audit."""

from __future__ import annotations

import logging
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from redis import Redis
from redis.exceptions import RedisError

from dashboard.services import services_of
from serving.audit.services import record
from serving.contracts import keys
from serving.contracts.actors import Actor

logger = logging.getLogger(__name__)

MAX_FAILURES_A_MINUTE = 30
"""Failed sign-ins that are written down, from everywhere together: whoever tries passwords must not fill the disk."""

UNKNOWN_NAME = "(a name that no user has)"
"""Stands for what was typed as a name, which may be a password."""


class SignIn(LoginView):
    """Owns one request, on one of Django's threads. Keeps who came in, and who was turned away."""

    template_name = "dashboard/login.html"
    redirect_authenticated_user = True

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """Let the user in."""
        with transaction.atomic():
            response = super().form_valid(form)
            name = form.get_user().get_username()
            record("signed in", actor=acting(self.request, name), subject_kind="user", subject=name)
        return response

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        """Turn somebody away."""
        if _may_note_failure(services_of(self.request).blocking_redis):
            name = form.cleaned_data.get("username", "")
            known = name if get_user_model().objects.filter(username=name).exists() else UNKNOWN_NAME
            record("sign-in failed", actor=acting(self.request, known), subject_kind="user", subject=known)
        return super().form_invalid(form)


class SignOut(LogoutView):
    """Owns one request, on one of Django's threads. Keeps who went."""

    next_page = "dashboard:login"

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Sign out whoever is signed in."""
        name = request.user.get_username()
        with transaction.atomic():
            response: HttpResponse = super().post(request, *args, **kwargs)
            if name:
                record("signed out", actor=acting(request, name), subject_kind="user", subject=name)
        return response


def acting(request: HttpRequest, name: str) -> Actor:
    """A user of that name as whoever made this request."""
    return Actor(name, "user", address=request.META.get("REMOTE_ADDR") or "")


def _may_note_failure(redis: Redis) -> bool:
    try:
        # Both at once: a counter without an end would keep all later failures out.
        pipe = redis.pipeline(transaction=True)
        pipe.set(keys.failed_sign_ins(), 0, ex=60, nx=True)
        pipe.incr(keys.failed_sign_ins())
        num_noted = pipe.execute()[-1]
    except (RedisError, OSError) as error:
        logger.warning("a failed sign-in is not written down, as Redis cannot count it: %s", error)
        return False
    return int(num_noted) <= MAX_FAILURES_A_MINUTE
