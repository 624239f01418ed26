"""Who gets into the console, and what a browser may do there."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from channels.db import database_sync_to_async
from django.contrib.auth.models import AnonymousUser, User
from django.test import AsyncClient, RequestFactory
from django.urls import URLPattern, get_resolver
from django.utils import timezone

from dashboard.middleware import policy_for
from dashboard.models import ConsoleSession
from dashboard.permissions import may_steer, may_watch
from dashboard.tasks import clear_expired_sessions
from tests.dashboard.harness import PASSWORD, make_user, new_session
from tests.dashboard.tenancy import browser

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"
OPEN = {"/console/login/", "/console/logout/", "/console/session.json"}
PATHS = sorted(
    "/console/" + re.sub(r"<int:[^>]+>", "1", re.sub(r"<str:[^>]+>", "default", str(pattern.pattern)))
    for pattern in get_resolver("dashboard.urls").url_patterns
    if isinstance(pattern, URLPattern)
)


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", sorted({*PATHS} - OPEN))
async def test_a_stranger_sees_and_does_nothing(pool: str, path: str, method: str) -> None:
    response = await AsyncClient().generic(method, path)
    if response.status_code == 302:
        assert response.headers["Location"].startswith("/console/login/?next=/console/")
    else:
        assert response.status_code in {401, 403, 405}


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("path", sorted({*PATHS} - OPEN))
async def test_a_user_who_is_no_operator_sees_and_does_nothing(pool: str, path: str, method: str) -> None:
    client = AsyncClient()
    await client.aforce_login(await database_sync_to_async(make_user)("someone", is_staff=False))
    assert (await client.generic(method, path)).status_code in {403, 405}


def test_the_walk_finds_the_paths_that_matter() -> None:
    assert {
        "/console/",
        "/console/pools/default/",
        "/console/pools/default/prompt",
        "/console/pools/default/versions/",
        "/console/pools/default/versions/1/roll-back",
    } <= set(PATHS)


async def test_an_operator_signs_in_and_out(application: Any) -> None:
    await database_sync_to_async(User.objects.create_superuser)("operator", password=PASSWORD)
    async with browser(application, None) as client:
        form = {"username": "operator", "password": "wrong", "csrfmiddlewaretoken": await csrf_token(client)}
        wrong = await client.post("/console/login/", data=form)
        assert (wrong.status_code, b"do not match" in wrong.content) == (200, True)
        right = await client.post("/console/login/", data={**form, "password": PASSWORD})
        assert (right.status_code, right.headers["Location"]) == (302, "/console/")
        assert (await client.get("/console/logout/")).status_code == 405
        assert client.cookies["sessionid"]
        left = await client.post("/console/logout/", data={"csrfmiddlewaretoken": client.cookies["csrftoken"]})
        assert (left.status_code, left.headers["Location"]) == (302, "/console/login/")
        assert "sessionid" not in client.cookies


async def test_a_form_that_is_about_to_be_sent_learns_whose_session_it_is(application: Any, pool: str) -> None:
    told = []
    for cookie in (None, await new_session("ann"), await new_session("ben", is_staff=False)):
        async with browser(application, cookie) as client:
            answer = await client.get("/console/session.json")
            told.append((answer.json()["user"], answer.json()["may_watch"]))
    assert told == [(None, False), ("ann", True), ("ben", False)]


async def test_a_user_who_is_no_operator_gets_a_form_to_sign_out_with(application: Any, pool: str) -> None:
    async with browser(application, await new_session("ben", is_staff=False)) as client:
        page = await client.get("/console/")
    assert page.status_code == 403
    # `sending.js` lets that form go whatever the user may do; all others are for operators.
    assert re.findall(r'<form method="post"[^>]*>', page.text) == [
        '<form method="post" action="/console/logout/" data-for-all>'
    ]


@pytest.mark.django_db
def test_permissions_follow_account_and_right() -> None:
    steering, watching = make_user("ann"), make_user("ben", may_steer=False)
    assert (may_watch(steering), may_steer(steering)) == (True, True)
    assert (may_watch(watching), may_steer(watching)) == (True, False)
    steering.is_staff = False
    assert (may_watch(steering), may_steer(steering)) == (False, False)
    watching.is_active = False
    assert (may_watch(watching), may_steer(watching)) == (False, False)
    assert (may_watch(AnonymousUser()), may_steer(AnonymousUser())) == (False, False)
    inactive = User.objects.create_superuser("root", password=PASSWORD, is_active=False)
    assert (may_watch(inactive), may_steer(inactive)) == (False, False)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", ["/console/", "/console/login/", "/console/nowhere"])
async def test_nothing_inline_and_nothing_foreign_may_run(path: str) -> None:
    headers = (await AsyncClient().get(path)).headers
    directives = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert directives["default-src"] == "'none'"
    for kind in ("script-src", "style-src", "img-src", "font-src", "form-action"):
        assert directives[kind] == "'self'"
    for kind in ("base-uri", "frame-ancestors", "object-src"):
        assert directives[kind] == "'none'"
    assert directives["require-trusted-types-for"] == "'script'"
    assert directives["connect-src"] == "'self' ws://testserver"
    assert headers["Referrer-Policy"] == "same-origin"
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"


def test_the_policy_lets_pages_reach_their_own_websocket_and_no_other(settings: Any) -> None:
    factory = RequestFactory()
    assert "connect-src 'self' wss://localhost:8443;" in policy_for(
        factory.get("/", secure=True, HTTP_HOST="localhost:8443")
    )
    for host in ("evil.example", "localhost;script-src *", "localhost x"):
        assert "connect-src 'self';" in policy_for(factory.get("/", HTTP_HOST=host))


def test_templates_keep_to_the_policy() -> None:
    for template in TEMPLATES.rglob("*.html"):
        text = template.read_text()
        assert not re.search(r"<style|<script(?![^>]*\bsrc=)|\sstyle=|\son[a-z]+=|https?://", text), template.name


@pytest.mark.django_db
def test_expired_sessions_are_cleared_and_others_stay() -> None:
    now = timezone.now()
    for key, expires in [("old", now - timedelta(days=1)), ("new", now + timedelta(days=1))]:
        ConsoleSession.objects.create(session_key=key, session_data="", expire_date=expires)
    clear_expired_sessions()
    assert list(ConsoleSession.objects.values_list("session_key", flat=True)) == ["new"]


async def csrf_token(client: httpx.AsyncClient) -> str:
    page = (await client.get("/console/login/")).content.decode()
    match = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    assert match is not None
    return match[1]
