"""The kernels in every form that can run here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch  # noqa: F401  (first: the kernels use its OpenMP runtime)

from serving.engine.kernels.build import built_library, compile_library, flags_of, variants
from serving.engine.kernels.library import Library

EMULATED = "emulated tiles"
FORMS = ("avx512-bf16", "avx512", EMULATED)


@pytest.fixture(scope="session", params=FORMS)
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Library:
    form, folder = request.param, tmp_path_factory.mktemp("kernels")
    if form != EMULATED:
        if form not in variants():
            pytest.skip(f"this processor has no {form}")
        return Library(built_library(folder, variant=form))
    base = next(iter(variants()), None)
    if base is None:
        pytest.skip("this processor has no AVX-512")
    header = Path(__file__).parent / "emulated_tiles.h"
    flags = tuple(flag for flag in flags_of(base) if not flag.startswith("-mamx"))
    compile_library(folder / "emulated.so", (*flags, "-include", str(header), "-DFOOTPLATE_EMULATED_TILES"))
    return Library(folder / "emulated.so")
