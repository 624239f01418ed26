"""Real stacks: one shared by the tests that leave it as it was, and one of its own for those that break things."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from playwright.sync_api import Browser

from tests.e2e.browsing import Console, open_console, running_browser
from tests.e2e.stack import Stack, prepare_home

MakeStack = Callable[..., Stack]


@pytest.fixture(scope="session")
def prepared_home(tmp_path_factory: pytest.TempPathFactory, default_model: Path) -> Path:
    """A home after a first start, to be copied."""
    home = tmp_path_factory.mktemp("prepared")
    prepare_home(home, default_model)
    return home


@pytest.fixture(scope="session")
def stack(tmp_path_factory: pytest.TempPathFactory, default_model: Path, prepared_home: Path) -> Iterator[Stack]:
    """A stack that tests share; each leaves it idle, with its tunables as they were."""
    home = tmp_path_factory.mktemp("stack") / "home"
    shutil.copytree(prepared_home, home, symlinks=True)
    stack = Stack.over(home, default_model).start()
    yield stack
    assert stack.stop() == 0


@pytest.fixture
def own_stack(tmp_path: Path, default_model: Path, prepared_home: Path) -> Iterator[MakeStack]:
    """Makes stacks for one test, killed at its end.

    With `prepared` a first start was made before, unless the database is elsewhere.
    """
    made: list[Stack] = []

    def make(*, prepared: bool = True, **environment: str) -> Stack:
        if prepared and "DATABASE_URL" not in environment:
            shutil.copytree(prepared_home, tmp_path, symlinks=True, dirs_exist_ok=True)
        made.append(Stack.over(tmp_path, default_model, **environment))
        return made[-1]

    yield make
    for stack in made:
        stack.kill()


@pytest.fixture(scope="session")
def two_pools(tmp_path_factory: pytest.TempPathFactory, default_model: Path) -> Iterator[Stack]:
    """A stack with the pools `chat` and `bulk` over one model, of which `bulk` has the smaller KV cache.

    Tests share it; each leaves both idle, with their tunables as they were.
    """
    pools = {"FOOTPLATE_POOLS": "chat; bulk kv_cache_mb=48 threads=1", "FOOTPLATE_KV_CACHE_MB": "96"}
    stack = Stack.over(tmp_path_factory.mktemp("pools"), default_model, **pools).start()
    yield stack
    assert stack.stop() == 0


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.first_run["api_key"], max_retries=0) as client:
        yield client


@pytest.fixture
def model(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


@pytest.fixture(scope="module")  # not longer: async tests cannot run beside it
def browser() -> Iterator[Browser]:
    """A real browser that a module's tests share."""
    with running_browser() as browser:
        yield browser


@pytest.fixture
def console_page(browser: Browser) -> Iterator[Callable[..., Console]]:
    """Opens signed-in consoles (see `open_console`), closed at the test's end, when none may have a complaint left."""
    opened: list[Console] = []

    def open_one(stack: Stack, path: str = "/console/", **options: Any) -> Console:
        opened.append(open_console(browser, stack, path, **options))
        return opened[-1]

    yield open_one
    for console in opened:
        console.page.context.close()
    assert [complaint for console in opened for complaint in console.complaints] == []
