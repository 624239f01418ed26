"""Builds the kernels for this machine's instruction set, once, and keeps what was built."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_log = logging.getLogger(__name__)

_SOURCES = Path(__file__).parent
_COMPILERS = ("g++", "c++", "clang++")
_BASE_FLAGS = ("-O3", "-std=c++20", "-shared", "-fPIC", "-pthread", "-fno-math-errno", "-w")
_AVX512 = ("-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq")
_HAS_AVX512 = frozenset({"avx2", "fma", "avx512f", "avx512bw", "avx512vl", "avx512dq"})
_VARIANTS: tuple[tuple[str, frozenset[str], tuple[str, ...]], ...] = (
    (
        "amx-bf16",
        _HAS_AVX512 | {"avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16"},
        (*_AVX512, "-mavx512bf16", "-mavx512vnni", "-mamx-tile", "-mamx-bf16"),
    ),
    ("avx512-bf16", _HAS_AVX512 | {"avx512_bf16", "avx512_vnni"}, (*_AVX512, "-mavx512bf16", "-mavx512vnni")),
    ("avx512-vnni", _HAS_AVX512 | {"avx512_vnni"}, (*_AVX512, "-mavx512vnni")),
    ("avx512", _HAS_AVX512, _AVX512),
)
"""Instruction sets that there are kernels for, the best first: name, what the processor must have, compiler flags."""
_PATIENCE_SECONDS = 300


class NoKernels(Exception):
    """The kernels cannot be had on this machine; the message says why in a line."""


def variants() -> tuple[str, ...]:
    """The instruction sets that this processor has kernels for, the best first."""
    flags = _processor_flags()
    return tuple(name for name, needed, _ in _VARIANTS if needed <= flags)


def flags_of(variant: str) -> tuple[str, ...]:
    """The compiler's flags for an instruction set by its name."""
    return (*_BASE_FLAGS, *next(flags for name, _, flags in _VARIANTS if name == variant))


def built_library(folder: Path, *, variant: str, more_flags: tuple[str, ...] = ()) -> Path:
    """The shared library for one of `variants`, built now where `folder` does not have it yet.

    Two processes that ask at once build once. Raises `NoKernels` where compiler or folder do not allow it.
    """
    flags = (*flags_of(variant), *more_flags)
    library = folder / f"decoder-{variant}-{_fingerprint(flags)}.so"
    if library.exists():
        return library
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / "lock"):
            if not library.exists():
                compile_library(library, flags)
    except OSError as error:
        raise NoKernels(f"cannot write to {folder} ({error.strerror})") from None
    return library


def compile_library(library: Path, flags: tuple[str, ...]) -> None:
    """Compile the kernels with `flags` to the file `library`, which is there whole or not at all.

    Raises `NoKernels`.
    """
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        raise NoKernels(f"there is no C++ compiler ({', '.join(_COMPILERS)})")
    _log.info("compiling the kernels to %s, which takes some seconds once", library)
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        fresh = Path(scratch) / library.name
        command = [compiler, *flags, str(_SOURCES / "decoder.cpp"), "-o", str(fresh)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_PATIENCE_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise NoKernels(f"{compiler} took longer than {_PATIENCE_SECONDS} s") from None
        if done.returncode:
            raise NoKernels(f"{compiler} failed: {_first_error(done.stderr)}")
        with fresh.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(fresh, library)


def _first_error(output: str) -> str:
    lines = output.splitlines() or ["no output"]
    return next((line for line in lines if "error" in line), lines[0])


def _fingerprint(flags: tuple[str, ...]) -> str:
    digest = hashlib.sha256(" ".join(flags).encode())
    for source in sorted((*_SOURCES.glob("*.h"), *_SOURCES.glob("*.cpp"))):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]


def _processor_flags() -> frozenset[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line for line in lines if line.startswith("flags")), "").split())


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
