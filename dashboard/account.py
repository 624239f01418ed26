"""The page of one's own account: what one may do, where one is signed in, and one's password."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.forms import PasswordChangeForm
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from dashboard import users as services
from dashboard.pages import only, render_page
from dashboard.permissions import may_watch
from dashboard.roles import role_of
from dashboard.services import services_of
from dashboard.signing import acting, address_of
from dashboard.threads import in_thread
from dashboard.throttle import count_attempt, forget_failures
from dashboard.user_presenters import RolesTable, SessionRow, present_roles, present_sessions
from dashboard.user_reading import must_change_password, sessions_of
from serving.contracts.errors import StaleVersion

_LONGEST_PASSWORD = 4096
_FIELDS = ("old_password", "new_password1", "new_password2")

for_owners = only(may_watch, with_any_password=True)


@sensitive_post_parameters(*_FIELDS)
@require_http_methods(["GET", "HEAD", "POST"])
@for_owners
async def account(request: HttpRequest) -> HttpResponseBase:
    """One's account. Posted to, it changes the password: this session goes on, all others end."""
    errors: Mapping[str, str] = {}
    if request.method == "POST":
        errors = await in_thread(_change_password, request)
        if not errors:
            messages.success(request, "Your password is changed. You are signed out everywhere else.")
            return redirect("dashboard:account")
    page = await in_thread(_read_account, request, errors)
    status = 200 if not errors else 429 if "wait" in errors else 400
    return await render_page(request, "dashboard/account.html", page, status=status)


@require_POST
@for_owners
async def end_other_sessions(request: HttpRequest) -> HttpResponseBase:
    """Sign oneself out everywhere but here."""
    num_ended = await in_thread(_end_others, request)
    messages.success(request, f"Signed out elsewhere: {num_ended} session{'' if num_ended == 1 else 's'} ended.")
    return redirect("dashboard:account")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AccountPage:
    """What `account.html` shows. `errors` are by field of the password's form."""

    page: str = "account"
    name: str
    role: str
    must_change_password: bool
    roles_table: RolesTable
    sessions: tuple[SessionRow, ...]
    has_other_sessions: bool
    errors: Mapping[str, str]


def _read_account(request: HttpRequest, errors: Mapping[str, str]) -> AccountPage:
    user: Any = request.user
    sessions = present_sessions(sessions_of(user), this=request.session.session_key)
    return AccountPage(
        name=user.get_username(),
        role=role_of(user),
        must_change_password=must_change_password(user),
        roles_table=present_roles(own=role_of(user)),
        sessions=sessions,
        has_other_sessions=any(not one.is_this for one in sessions),
        errors=errors,
    )


def _change_password(request: HttpRequest) -> dict[str, str]:
    """What is wrong, by field; nothing where the password is changed."""
    user: Any = request.user
    typed = {field: request.POST.get(field, "") for field in _FIELDS}
    for field, text in typed.items():
        if len(text) > _LONGEST_PASSWORD:
            return {field: f"a password has at most {_LONGEST_PASSWORD:,} characters"}
    name, redis, address = user.get_username(), services_of(request).blocking_redis, address_of(request)
    # Who found a window open must not find out the password by trying.
    attempt = count_attempt(redis, name=name, address=address)
    if attempt.wait_seconds:
        minutes = math.ceil(attempt.wait_seconds / 60)
        return {"wait": f"too many passwords were tried: try again in {minutes} minute{'' if minutes == 1 else 's'}"}
    form = PasswordChangeForm(user, typed)
    errors = _errors_of(form)
    if "old_password" not in errors and attempt.is_counted:
        forget_failures(redis, name=name, address=address)
    if errors:
        return errors
    try:
        services.change_own_password(
            user,
            form.cleaned_data["new_password1"],
            author=acting(request, name),
            kept=request.session.session_key,
        )
    except StaleVersion as error:
        return {"old_password": error.message}
    update_session_auth_hash(request, user)
    return {}


def _errors_of(form: PasswordChangeForm) -> dict[str, str]:
    errors = {field: _in_one(found) for field, found in form.errors.items()}
    if not errors and form.cleaned_data["new_password1"] == form.cleaned_data["old_password"]:
        return {"new_password1": "the new password must be another one than the old"}
    return errors


def _in_one(messages_of_field: Any) -> str:
    """A field's messages as one sentence, to which the page adds the full stop."""
    return " ".join(map(str, messages_of_field)).rstrip(".")


def _end_others(request: HttpRequest) -> int:
    user: Any = request.user
    return services.end_other_sessions(
        user.pk, author=acting(request, user.get_username()), kept=request.session.session_key
    )
