"""The kernels in every form that can run here."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from serving.engine.kernels.build import built_library, variants
from serving.engine.kernels.library import Library

EMULATED = "emulated tiles"
FORMS = (*variants(), EMULATED)
"""All that this processor can run, and tiles in any case."""


@pytest.fixture(scope="session", params=FORMS)
def kernels(request: pytest.FixtureRequest, kernels_folder: Path) -> Library:
    """The kernels in one form."""
    form = request.param
    if form != EMULATED:
        return Library(built_library(kernels_folder, variant=form))
    base = next((variant for variant in variants() if variant != "amx-bf16"), None)
    if base is None:
        pytest.skip("this processor has no AVX-512")
    header = Path(__file__).parent / "emulated_tiles.h"
    version = hashlib.sha256(header.read_bytes()).hexdigest()
    flags = ("-include", str(header), f"-DFOOTPLATE_EMULATED_TILES=0x{version[:8]}")
    return Library(built_library(kernels_folder, variant=base, more_flags=flags))
