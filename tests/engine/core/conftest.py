"""Worlds for tests of the engine's torch-free part."""

from __future__ import annotations

import pytest

from tests.engine.core.harness import World


@pytest.fixture
def world() -> World:
    """A pool that is never short, tunables as by default without a watermark."""
    return World(num_blocks=2048)
