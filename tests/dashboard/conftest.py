"""A web process without engines: database, Redis, feed and application are real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from serving.config.asgi import build_application
from serving.tuning.services import ensure_pool
from tests.dashboard.harness import POOL, Page, Services, console_services, new_session
from tests.dashboard.tenancy import browser, session_of

OpenPage = Callable[..., Page]


@pytest.fixture
def pool(transactional_db: None) -> str:
    return ensure_pool(POOL, "a-model").name


@pytest.fixture
async def services(valkey: str) -> AsyncIterator[Services]:
    async with console_services(valkey) as services:
        yield services


@pytest.fixture
def application(services: Services, pool: str) -> Any:
    return build_application(services)


@pytest.fixture
async def operator(pool: str) -> str:
    """The cookie of an operator who may steer."""
    return await new_session("operator")


@pytest.fixture
async def steerer(application: Any) -> AsyncIterator[httpx.AsyncClient]:
    """The browser of one who may steer."""
    async with browser(application, await session_of("operator", "ann")) as client:
        yield client


@pytest.fixture
async def viewer(application: Any) -> AsyncIterator[httpx.AsyncClient]:
    """The browser of one who may look only."""
    async with browser(application, await session_of("viewer", "vic")) as client:
        yield client


@pytest.fixture
async def make_page(application: Any) -> AsyncIterator[OpenPage]:
    """Pages on the application that are gone after the test, and have left no task behind."""
    before = asyncio.all_tasks()
    pages: list[Page] = []

    def make(*args: Any, application: Any = application, **kwargs: Any) -> Page:
        pages.append(Page(application, *args, **kwargs))
        return pages[-1]

    yield make
    for page in pages:
        if page.task is not None and not page.task.done():
            await page.leave()
    coroutines = [repr(task.get_coro()) for task in asyncio.all_tasks() - before]
    serving = [name for name in coroutines if "_Page" in name or "PageSocket" in name]
    assert serving == []


@pytest.fixture
async def page(make_page: OpenPage, operator: str) -> Page:
    """An operator's page, not connected yet."""
    return make_page(operator)


@pytest.fixture
async def admin(application: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A browser in which an administrator, ann, has signed in."""
    async with browser(application, await session_of("admin", "ann")) as client:
        yield client
