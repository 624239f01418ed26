"""Worlds for tests of the engine's torch-free part."""

from __future__ import annotations

import pytest

from tests.engine.core import harness
from tests.engine.core.harness import World


@pytest.fixture(params=[False, True], ids=["step by step", "looking ahead"])
def either_runner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test twice: with a runner that computes a plan at once, and with one that is given plans ahead."""
    monkeypatch.setattr(harness, "LOOKS_AHEAD", request.param)


@pytest.fixture
def world() -> World:
    """A pool that is never short, tunables as by default without a watermark."""
    return World(num_blocks=2048)
