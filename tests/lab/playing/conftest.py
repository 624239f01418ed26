"""What tests of playing have in common."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.lab.playing.answering import Server, answering


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    """A server that runs until the test is over."""
    async with answering() as server:
        yield server
