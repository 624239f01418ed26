"""The kernels for this machine, checked before they are trusted."""

from __future__ import annotations

import logging
import time
import typing
from pathlib import Path

import torch

from serving.engine.kernels.build import NoKernels, built_library, variants
from serving.engine.kernels.library import Library, NotLoadable, NotUsable
from serving.engine.kernels.matrices import KernelMatrix
from serving.engine.kernels.quantised import WeightFormat, rounded_rows, rounded_weights

_log = logging.getLogger(__name__)

_SHAPES = ((1, 16, 32), (6, 64, 96), (19, 80, 64), (40, 48, 160), (3, 1040, 64))
"""Rows, outputs and inputs of the products that are tried: about the edges of every tile."""
_TOLERANCE = 1e-4
_TRIES = 3
_PAUSE_SECONDS = 0.2


def load_kernels(folder: Path) -> Library:
    """The kernels for the best instruction set of this processor that can be built and that multiply right.

    Built in `folder` where they are missing. Raises `NoKernels`.
    """
    reasons: list[str] = []
    for variant in variants():
        try:
            library = _tried(folder, variant)
        except NoKernels as problem:
            reasons.append(str(problem))
            continue
        if reasons:
            _log.warning("the best kernels for this processor cannot be had: %s", "; ".join(reasons))
        _log.info("computing with the kernels for %s", variant)
        return library
    raise NoKernels(reasons[-1] if reasons else "this processor has no AVX-512")


def _tried(folder: Path, variant: str) -> Library:
    """The library for `variant`, which multiplies right. What the system refuses, or what multiplies wrongly, is tried
    again: instruction sets round differently, and streams that go on at another engine should meet the same bits."""
    for is_last in (*[False] * (_TRIES - 1), True):
        try:
            library = _loaded(folder, variant)
        except NotUsable:
            reason = f"the system does not allow {variant}"
        else:
            if multiplies_right(library):
                return library
            reason = f"the kernels for {variant} do not multiply right here"
        if not is_last:
            _log.warning("%s: tried again", reason)
            time.sleep(_PAUSE_SECONDS)
    raise NoKernels(reason)


def _loaded(folder: Path, variant: str) -> Library:
    """The library for `variant`; one that is there but cannot be loaded is built anew, once. Raises `NoKernels` and
    `NotUsable`."""
    path = built_library(folder, variant=variant)
    try:
        return Library(path)
    except NotLoadable as problem:
        _log.warning("%s is built anew: %s", path.name, problem)
        path.unlink(missing_ok=True)
    try:
        return Library(built_library(folder, variant=variant))
    except NotLoadable as problem:
        raise NoKernels(f"the kernels for {variant} cannot be loaded ({problem})") from None


def multiplies_right(library: Library) -> bool:
    """Whether products of several shapes in every format are what plain arithmetic makes of them."""
    generator = torch.Generator().manual_seed(0)
    for num_rows, num_outputs, num_inputs in _SHAPES:
        # Whole numbers: their sums are exact in whatever order they are rotated.
        rows = torch.randint(-127, 128, (num_rows, num_inputs), generator=generator).bfloat16()
        weight = torch.randn(num_outputs, num_inputs, generator=generator).bfloat16()
        for weight_format in typing.get_args(WeightFormat):
            expected = rounded_rows(rows, weight_format) @ rounded_weights(weight, weight_format).double().T
            found = KernelMatrix(weight, weight_format=weight_format).times(rows, library)[:, :num_outputs]
            if not torch.allclose(found.double(), expected, rtol=_TOLERANCE, atol=_TOLERANCE * 127 * num_inputs**0.5):
                return False
    return True
