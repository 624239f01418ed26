"""Signing in and out, each written down in the audit."""

from __future__ import annotations

import logging
import math
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView, LogoutView
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.views.decorators.http import require_safe
from redis import Redis
from redis.exceptions import RedisError

from dashboard.permissions import may_watch
from dashboard.services import services_of
from dashboard.throttle import Attempt, count_attempt, forget_failures
from dashboard.user_reading import SIGNED_IN_AT, SIGNED_IN_FROM, must_change_password
from serving.audit.actions import Action
from serving.audit.services import record
from serving.contracts import keys
from serving.contracts.actors import Actor

logger = logging.getLogger(__name__)

MAX_FAILURES_A_MINUTE = 30
"""Failed sign-ins that are written down, from everywhere together: whoever tries passwords must not fill the disk."""

_LONGEST_NAME = 254

UNKNOWN_NAME = "(a name that no user has)"
"""Stands for what was typed as a name, which may be a password."""


class SignIn(LoginView):
    """Owns one request, on one of Django's threads. Keeps who came in, and who was turned away."""

    template_name = "dashboard/login.html"
    redirect_authenticated_user = True

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Try the password, unless too many were tried."""
        redis, name = services_of(request).blocking_redis, _typed_name(request)
        attempt = count_attempt(redis, name=name, address=address_of(request))
        if attempt.wait_seconds:
            return self._hold_back(attempt, name)
        response: HttpResponse = super().post(request, *args, **kwargs)
        if response.status_code == 302 and attempt.is_counted:
            forget_failures(redis, name=name, address=address_of(request))
        return response

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        """Let the user in."""
        with transaction.atomic():
            response = super().form_valid(form)
            name = form.get_user().get_username()
            self.request.session[SIGNED_IN_AT] = timezone.now().isoformat()
            self.request.session[SIGNED_IN_FROM] = address_of(self.request)
            record("signed in", actor=acting(self.request, name), subject_kind="user", subject=name)
        return response

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        """Turn somebody away."""
        self._note("sign-in failed", form.cleaned_data.get("username", ""))
        return super().form_invalid(form)

    def _hold_back(self, attempt: Attempt, name: str) -> HttpResponse:
        if attempt.is_first_held_back:
            self._note("sign-ins held back", name)
        # Not the posted form: to ask it for its errors is to try the password.
        form = self.get_form_class()(self.request, initial={"username": name})
        minutes = math.ceil(attempt.wait_seconds / 60)
        context = self.get_context_data(form=form, wait_minutes=minutes)
        headers = {"Retry-After": str(attempt.wait_seconds)}
        return self.response_class(
            request=self.request, template=self.get_template_names(), context=context, status=429, headers=headers
        )

    def _note(self, action: Action, name: str) -> None:
        if _may_note_failure(services_of(self.request).blocking_redis):
            known = name if get_user_model().objects.filter(username=name).exists() else UNKNOWN_NAME
            record(action, actor=acting(self.request, known), subject_kind="user", subject=known)


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


@require_safe
async def session(request: HttpRequest) -> JsonResponse:
    """Whose session it is, for a form that is about to be sent: `{"user", "may_watch", "must_change_password"}`, null
    and false where nobody is signed in."""
    user = await request.auser()
    is_known = user.is_authenticated
    told = {
        "user": user.get_username() if is_known else None,
        "may_watch": may_watch(user),
        "must_change_password": is_known and must_change_password(user),
    }
    return JsonResponse(told)


def acting(request: HttpRequest, name: str) -> Actor:
    """A user of that name as whoever made this request."""
    return Actor(name, "user", address=address_of(request))


def address_of(request: HttpRequest) -> str:
    """Where a request came from; empty where nobody knows."""
    return request.META.get("REMOTE_ADDR") or ""


def _typed_name(request: HttpRequest) -> str:
    """The name as the form will read it, as far as the database takes it."""
    # As the form does, the blanks go first: blanks enough before a name must not make another one of it here.
    typed = request.POST.get("username", "").strip()[:_LONGEST_NAME]
    return str(AuthenticationForm.base_fields["username"].to_python(typed)).replace("\0", "")


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
