"""Fixtures of the engine's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes (once) and returns the folder of a tiny fp32 model of the named family."""
    from tests.engine.tiny_models import save_tiny_model  # loads transformers, which the scheduler's tests do without

    folders: dict[str, Path] = {}

    def make(family: str) -> Path:
        if family not in folders:
            folders[family] = tmp_path_factory.mktemp("models") / family
            save_tiny_model(family, folders[family])
        return folders[family]

    return make


@pytest.fixture(scope="session")
def kernels_folder() -> Path:
    """Where the kernels are kept from one run of the tests to the next: built anew when their sources change.

    Skips where there can be none.
    """
    from serving.engine.kernels.build import variants

    if not variants():
        pytest.skip("this processor has no AVX-512")
    folder = Path(__file__).parent.parent.parent / "var" / "test-kernels"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
