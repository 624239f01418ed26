"""What browsers get beside the console's pages: the API's documentation, and static files that never go stale."""

from __future__ import annotations

import re
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import expect

from tests.e2e.browsing import Console
from tests.e2e.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.model, pytest.mark.browser]


def test_the_documentation_lists_the_operations_of_the_api(stack: Stack, console_page: Callable[..., Console]) -> None:
    page = console_page(stack, "/docs").page
    expect(page.get_by_text("/v1/chat/completions")).to_be_visible()


def test_what_a_page_names_is_hashed_compressed_and_kept_for_good(stack: Stack) -> None:
    page = httpx.get(f"{stack.url}/console/login/")
    names = re.findall(r"""(?:src|href)="(/static/[^"]+)""", page.text)
    assert page.status_code == 200
    assert len(names) >= 3
    for name in names:
        answer = httpx.get(stack.url + name, headers={"Accept-Encoding": "gzip"})
        assert answer.status_code == 200, name
        assert re.search(r"\.[0-9a-f]{12}\.\w+$", name)
        assert "immutable" in answer.headers["Cache-Control"]
        assert answer.headers["Content-Encoding"] == "gzip"
