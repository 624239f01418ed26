"""The console's overview: who sees it, what it shows, what the browser may do on it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from channels.db import database_sync_to_async
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.test import AsyncClient
from django.utils import timezone
from redis.asyncio import Redis

from dashboard.presenters import present_pool
from dashboard.tasks import clear_expired_sessions
from serving.contracts.messages import AnnouncedTunables
from serving.contracts.tunables import Tunables, describe
from serving.tuning.services import ensure_pool

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"
PASSWORD = "a long enough password"


@dataclasses.dataclass(frozen=True)
class Services:
    """What the console needs of a web process."""

    redis: Redis


class ConsoleClient(AsyncClient):
    """A client whose requests reach the console as a web process's outermost layer leaves them."""

    def __init__(self, services: Services) -> None:
        super().__init__()
        self._services = services

    def _base_scope(self, **request: Any) -> Any:
        return {**super()._base_scope(**request), "footplate": self._services}


@pytest.fixture
async def services(valkey: str) -> AsyncIterator[Services]:
    redis = Redis.from_url(valkey)
    yield Services(redis)
    await redis.aclose()


async def signed_in(services: Services, *, is_staff: bool = True) -> AsyncClient:
    user = await database_sync_to_async(User.objects.create_user)("someone", password=PASSWORD, is_staff=is_staff)
    client = ConsoleClient(services)
    await client.aforce_login(user)
    return client


@pytest.mark.django_db(transaction=True)
async def test_a_stranger_is_sent_to_sign_in() -> None:
    response = await AsyncClient().get("/console/")
    assert response.status_code == 302
    assert response.headers["Location"] == "/console/login/?next=/console/"


@pytest.mark.django_db(transaction=True)
async def test_an_operator_signs_in_and_out() -> None:
    await database_sync_to_async(User.objects.create_superuser)("operator", password=PASSWORD)
    client = AsyncClient(enforce_csrf_checks=True)
    token = await csrf_token(client)
    wrong = await client.post(
        "/console/login/", {"username": "operator", "password": "wrong", "csrfmiddlewaretoken": token}
    )
    assert (wrong.status_code, b"do not match" in wrong.content) == (200, True)
    right = await client.post(
        "/console/login/", {"username": "operator", "password": PASSWORD, "csrfmiddlewaretoken": token}
    )
    assert (right.status_code, right.headers["Location"]) == (302, "/console/")
    assert (await client.get("/console/logout/")).status_code == 405
    assert client.cookies["sessionid"].value
    token = client.cookies["csrftoken"].value
    left = await client.post("/console/logout/", {"csrfmiddlewaretoken": token})
    assert (left.status_code, left.headers["Location"]) == (302, "/console/login/")
    assert client.cookies["sessionid"].value == ""


@pytest.mark.django_db(transaction=True)
async def test_a_user_who_is_no_operator_sees_nothing(services: Services) -> None:
    client = await signed_in(services, is_staff=False)
    assert (await client.get("/console/")).status_code == 403


@pytest.mark.django_db(transaction=True)
async def test_shows_every_tunable_with_its_help_and_the_versions(services: Services) -> None:
    await database_sync_to_async(ensure_pool)("default", "a-model")
    response = await (await signed_in(services)).get("/console/")
    assert response.status_code == 200
    page = response.content.decode()
    for spec in describe():
        assert f"<code>{spec.name}</code>" in page
        assert spec.help in page
    assert "Pool default" in page
    assert "applied on 0 of 0 engines" in page
    assert "the defaults" in page


@pytest.mark.django_db(transaction=True)
async def test_says_so_when_redis_does_not_answer(tmp_path: Path) -> None:
    await database_sync_to_async(ensure_pool)("default", "a-model")
    redis = Redis.from_url(f"unix://{tmp_path}/nobody.sock")
    response = await (await signed_in(Services(redis))).get("/console/")
    assert response.status_code == 200
    assert "Redis does not answer" in response.content.decode()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", ["/console/", "/console/login/"])
async def test_nothing_inline_and_nothing_foreign_may_run(path: str) -> None:
    policy = (await AsyncClient().get(path)).headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


def test_templates_keep_to_the_policy() -> None:
    for template in TEMPLATES.rglob("*.html"):
        text = template.read_text()
        assert not re.search(r"<style|<script(?![^>]*\bsrc=)|\sstyle=|\son[a-z]+=|https?://", text), template.name


@pytest.mark.django_db
def test_expired_sessions_are_cleared_and_others_stay() -> None:
    now = timezone.now()
    for key, expires in [("old", now - timedelta(days=1)), ("new", now + timedelta(days=1))]:
        Session.objects.create(session_key=key, session_data="", expire_date=expires)
    clear_expired_sessions()
    assert list(Session.objects.values_list("session_key", flat=True)) == ["new"]


def test_presents_figures_with_their_units() -> None:
    snapshot: dict[str, Any] = {
        "num_engines": 2,
        "applied_by": 1,
        "num_running": 3,
        "kv_blocks_total": 12_345,
        "intervals": {"ttft_seconds": {"count": 7, "mean": 0.0123, "p50": 0.01, "p90": 0.02, "p95": 0.5, "p99": 1.5}},
    }
    tunables = Tunables(max_running=64)
    page = present_pool("p", snapshot=snapshot, announced=AnnouncedTunables(4, tunables), versions=[])
    assert page.applied == "applied on 1 of 2 engines"
    assert dict(page.gauges)["KV blocks in all"] == "12,345"
    assert dict(page.gauges)["Waiting"] == "–"
    first_token = next(row for row in page.intervals if row.label == "Time to first token")
    assert (first_token.mean, first_token.percentiles) == ("12.3 ms", ("10.0 ms", "20.0 ms", "500 ms", "1,500 ms"))
    assert [row.name for row in page.tunables if not row.is_default] == ["max_running"]


async def csrf_token(client: AsyncClient) -> str:
    page = (await client.get("/console/login/")).content.decode()
    match = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
    assert match is not None
    return match[1]
