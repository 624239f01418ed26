"""The pages about those who may sign in. A password that is given out is in the answer to the form that asked for it,
and nowhere else: in no address, message, session or log."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from dashboard import users as services
from dashboard.pages import only, render_page, whole_number
from dashboard.permissions import may_administer_users
from dashboard.sessions import NotAllowed
from dashboard.signing import acting
from dashboard.threads import in_thread
from dashboard.user_presenters import (
    RoleChoice,
    RolesTable,
    UserRow,
    present_choices,
    present_roles,
    present_user,
    present_users,
)
from dashboard.user_reading import account_of, find_user, num_sessions_of, users_by_name
from serving.contracts.actors import Actor
from serving.contracts.errors import DomainError, StaleVersion
from serving.contracts.texts import is_storable, without_secrets

PAGE_SIZE = 50
LONGEST_SEARCH = 150
FIRST_ROLE = "viewer"

for_user_administrators = only(may_administer_users)


@require_safe
@for_user_administrators
async def users(request: HttpRequest) -> HttpResponseBase:
    """Users by name in pages: those whose name contains `?q=`, after the name `?after=`; and what each role may do."""
    page = await in_thread(_read_users, request.GET.get("q", "").strip(), request.GET.get("after", ""))
    return await render_page(request, "dashboard/users.html", page, status=400 if page.problem else 200)


@require_http_methods(["GET", "HEAD", "POST"])
@for_user_administrators
async def new(request: HttpRequest) -> HttpResponseBase:
    """The form that makes a user; the password is shown in the answer this once."""
    if request.method != "POST":
        return await render_page(request, "dashboard/user_new.html", NewPage(roles=present_choices(FIRST_ROLE)))
    made = await _acting(_make, request.POST, await _author_of(request))
    if isinstance(made, PasswordPage):
        return await render_page(request, "dashboard/user_password.html", made)
    return await render_page(request, "dashboard/user_new.html", made, status=400)


@require_http_methods(["GET", "HEAD", "POST"])
@for_user_administrators
async def user(request: HttpRequest, user_id: int) -> HttpResponseBase:
    """One user. Posted to, it changes role and state; where another was faster, what was typed stays."""
    author = await _author_of(request)
    if request.method != "POST":
        page = await in_thread(_read_user, user_id, author)
        return await render_page(request, "dashboard/user.html", page)
    changed = await _acting(_change, user_id, request.POST, author)
    if isinstance(changed, UserPage):
        return await render_page(request, "dashboard/user.html", changed, status=409 if changed.is_stale else 400)
    messages.success(request, "The change is stored, and counts at once." if changed else "Nothing changed.")
    return redirect("dashboard:user", user_id=user_id)


@require_http_methods(["GET", "HEAD", "POST"])
@for_user_administrators
async def password(request: HttpRequest, user_id: int) -> HttpResponseBase:
    """Posted to, it gives a user another password, shown in the answer this once."""
    if request.method != "POST":
        return redirect("dashboard:user", user_id=user_id)
    made = await _acting(_set_password, user_id, request.POST, await _author_of(request))
    if isinstance(made, UserPage):
        return await render_page(request, "dashboard/user.html", made, status=409)
    return await render_page(request, "dashboard/user_password.html", made)


@require_POST
@for_user_administrators
async def end_sessions(request: HttpRequest, user_id: int) -> HttpResponseBase:
    """Sign a user out everywhere."""
    num_ended = await _acting(services.end_sessions, user_id, author=await _author_of(request))
    messages.success(request, f"Signed out: {num_ended} session{'' if num_ended == 1 else 's'} ended.")
    return redirect("dashboard:user", user_id=user_id)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UsersPage:
    """What `users.html` shows. `problem` is what is wrong with the search."""

    page: str = "users"
    query: str
    problem: str
    rows: tuple[UserRow, ...]
    roles_table: RolesTable
    first_url: str | None
    next_url: str | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewPage:
    """What `user_new.html` shows; `errors` are by field."""

    page: str = "users"
    name: str = ""
    roles: tuple[RoleChoice, ...]
    roles_table: RolesTable = dataclasses.field(default_factory=present_roles)
    reason: str = ""
    errors: Mapping[str, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PasswordPage:
    """What `user_password.html` shows: the one sight of a password, which its `repr` does not tell."""

    page: str = "users"
    user_id: int
    name: str
    password: str = dataclasses.field(repr=False)
    is_new: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UserPage:
    """What `user.html` shows. `enabled` is what the form is filled with; `is_stale` where another was faster, and
    `problem` is what is wrong with no field of its own."""

    page: str = "users"
    row: UserRow
    is_self: bool
    may_set_password: bool
    enabled: bool
    reason: str = ""
    errors: Mapping[str, str] = dataclasses.field(default_factory=dict)
    problem: str = ""
    is_stale: bool = False
    audit_url: str


async def _acting(act: Any, *args: Any, **kwargs: Any) -> Any:
    """What a service gives; for who may no longer ask it, 403."""
    try:
        return await in_thread(act, *args, **kwargs)
    except NotAllowed as error:
        raise PermissionDenied(error.message) from None


async def _author_of(request: HttpRequest) -> Actor:
    return acting(request, (await request.auser()).get_username())


def _read_users(query: str, after: str) -> UsersPage:
    problem = ""
    if not all(is_storable(text, longest=LONGEST_SEARCH) for text in (query, after)):
        problem = f"q must be a text of at most {LONGEST_SEARCH} characters, without NUL and API keys"
        query, after = without_secrets(query).replace("\0", "")[:LONGEST_SEARCH], ""
    found = [] if problem else users_by_name(containing=query, after=after, limit=PAGE_SIZE + 1)
    shown = found[:PAGE_SIZE]
    return UsersPage(
        query=query,
        problem=problem,
        rows=present_users(shown, {one.pk: account_of(one) for one in shown}, num_sessions_of(shown)),
        roles_table=present_roles(),
        first_url=_url(q=query) if after else None,
        next_url=_url(q=query, after=shown[-1].username) if len(found) > PAGE_SIZE else None,
    )


def _url(**asked: str) -> str:
    text = urlencode({name: value for name, value in asked.items() if value})
    return reverse("dashboard:users") + (f"?{text}" if text else "")


def _make(post: Any, author: Actor) -> PasswordPage | NewPage:
    name, role, reason = post.get("name", "").strip(), post.get("role", ""), post.get("reason", "")
    try:
        made = services.make_user(name, role=role, author=author, reason=reason)
    except NotAllowed:
        raise
    except DomainError as error:
        return NewPage(
            name=without_secrets(name),
            roles=present_choices(role),
            reason=without_secrets(reason),
            errors={error.param or "name": error.message},
        )
    stored = find_user(made.user_id).username
    return PasswordPage(user_id=made.user_id, name=stored, password=made.password, is_new=True)


def _read_user(user_id: int, author: Actor, *, chosen: str | None = None, **shown: Any) -> UserPage:
    stored = find_user(user_id)
    num_sessions = num_sessions_of([stored]).get(stored.pk, 0)
    row = present_user(stored, account_of(stored), num_sessions=num_sessions, chosen=chosen)
    subject = urlencode({"subject_kind": "user", "subject": row.name})
    return UserPage(
        row=row,
        is_self=row.name == author.name,
        may_set_password=services.may_set_password(stored, author=author),
        audit_url=f"{reverse('dashboard:audit')}?{subject}",
        **{"enabled": row.is_enabled, **shown},
    )


def _change(user_id: int, post: Any, author: Actor) -> bool | UserPage:
    """Whether anything had to be changed, or the form again with what is wrong."""
    role, enabled, reason = post.get("role") or None, "enabled" in post, post.get("reason", "")
    typed: dict[str, Any] = {"chosen": role, "enabled": enabled, "reason": without_secrets(reason)}
    try:
        return services.change_user(
            user_id, role=role, enabled=enabled, seen=whole_number(post.get("seen")), author=author, reason=reason
        )
    except NotAllowed:
        raise
    except StaleVersion as error:
        return _read_user(user_id, author, **typed, problem=error.message, is_stale=True)
    except DomainError as error:
        if error.param is None:
            raise
        return _read_user(user_id, author, **typed, errors={error.param: error.message})


def _set_password(user_id: int, post: Any, author: Actor) -> PasswordPage | UserPage:
    try:
        made = services.set_new_password(user_id, seen=whole_number(post.get("seen")), author=author)
    except StaleVersion as error:
        return _read_user(user_id, author, problem=error.message, is_stale=True)
    return PasswordPage(user_id=user_id, name=find_user(user_id).username, password=made, is_new=False)
