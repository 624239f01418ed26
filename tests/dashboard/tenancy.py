"""The pages about tenants without a browser: who is signed in, what a page says, and forms as it has them."""

from __future__ import annotations

import html
import re
from typing import Any

import httpx
from channels.db import database_sync_to_async
from django.contrib.auth.models import Group, User

from dashboard.roles import ensure_roles
from serving.admission.models import Tenant
from serving.admission.services import add_key
from serving.admission.tenants import create_tenant
from tests.dashboard.harness import ORIGIN, PASSWORD, Services, sign_in
from tests.forms import fields_of as fields_of

in_thread = database_sync_to_async
TENANTS = "/console/tenants/"


def browser(application: Any, cookie: str | None) -> httpx.AsyncClient:
    cookies = {} if cookie is None else {"sessionid": cookie}
    return httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url=ORIGIN, cookies=cookies)


async def session_of(role: str, name: str = "") -> str:
    """The cookie of a new user with that role."""
    user = await in_thread(_make_user)(role, name or role)
    return await sign_in(user)


def _make_user(role: str, name: str) -> User:
    ensure_roles()
    user = User.objects.create_user(name, password=PASSWORD, is_staff=True)
    user.groups.add(Group.objects.get(name=role))
    return user


async def make_tenant(services: Services, name: str = "acme", **attributes: Any) -> Tenant:
    made: Tenant = await in_thread(create_tenant)(name, author="zoe", redis=services.blocking_redis, **attributes)
    return made


async def make_key(services: Services, tenant: Tenant, **options: Any) -> str:
    """A new key's text."""
    _, key = await in_thread(add_key)(
        tenant.pk, author="zoe", redis=services.blocking_redis, **{"scopes": ["generate"], **options}
    )
    text: str = key.text
    return text


async def page_of(client: httpx.AsyncClient, path: str, *, status: int = 200) -> str:
    response = await client.get(path)
    assert response.status_code == status, response.text
    return response.text


def words(page: str) -> str:
    """What a page says, without its tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def errors_of(page: str) -> dict[str, str]:
    """What stands beside each field that is wrong."""
    found = re.findall(r'<p class="field-error" id="([^"]+)-error">(.*?)</p>', page, re.DOTALL)
    return {name: html.unescape(text) for name, text in found}


async def submit(client: httpx.AsyncClient, path: str, *, at: str | None = None, **changes: Any) -> httpx.Response:
    """Open a page, change its form and send it to `at`, or to where the form goes."""
    page = await page_of(client, path)
    fields = fields_of(page) | changes
    return await client.post(at or path, data={name: value for name, value in fields.items() if value is not None})
