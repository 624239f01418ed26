"""The kernels are built once, and where they cannot be had PyTorch computes, with one line that says why."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from serving.engine.kernels import build, loading
from serving.engine.kernels.build import NoKernels, built_library, variants
from serving.engine.kernels.library import NotLoadable, NotUsable
from serving.engine.kernels.loading import load_kernels
from serving.engine.model_runner import ModelRunner
from serving.engine.models.making import Backend

TinyModel = Callable[[str], Path]

pytestmark = pytest.mark.heavy

needs_kernels = pytest.mark.skipif(not variants(), reason="this processor has no AVX-512")


def _runner(folder: Path, kernels: Path | None, *, backend: Backend = "auto", dtype: str = "bfloat16") -> ModelRunner:
    return ModelRunner(folder, kv_cache_bytes=2**22, dtype=dtype, backend=backend, kernels_folder=kernels)  # type: ignore[arg-type]


@pytest.fixture
def built(tmp_path: Path, kernels_folder: Path) -> Path:
    """The library for this processor's best instruction set in a folder of the test's own, though built long ago."""
    library = built_library(kernels_folder, variant=variants()[0])
    (tmp_path / "built").mkdir()
    return Path(shutil.copy(library, tmp_path / "built"))


@needs_kernels
def test_what_was_built_is_used_again(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_COMPILERS", ())
    assert built_library(built.parent, variant=variants()[0]) == built
    load_kernels(built.parent)


@needs_kernels
def test_other_sources_are_built_anew(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "decoder.cpp").write_text('extern "C" int nothing() { return 0; }\n')
    monkeypatch.setattr(build, "_SOURCES", sources)
    other = built_library(built.parent, variant=variants()[0])
    assert other != built
    assert other.exists()


@needs_kernels
def test_two_processes_that_ask_at_once_build_once(tmp_path: Path) -> None:
    """A compiler of ours counts how often it is called, and takes its time."""
    compiler, calls = tmp_path / "bin" / "g++", tmp_path / "calls"
    compiler.parent.mkdir()
    compiler.write_text(f'#!/bin/sh\necho call >> {calls}\nsleep 2\nwhile [ "$1" != -o ]; do shift; done\n: > "$2"\n')
    compiler.chmod(0o755)
    environment = {**os.environ, "PATH": f"{compiler.parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    program = (
        "import sys; from pathlib import Path; from serving.engine.kernels.build import *;"
        "print(built_library(Path(sys.argv[1]), variant=variants()[-1]))"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "kernels")]
    asking = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    libraries = {process.communicate(timeout=600)[0] for process in asking}
    assert len(libraries) == 1
    assert calls.read_text().split() == ["call"]


@needs_kernels
def test_auto_takes_the_kernels(built: Path, tiny_model: TinyModel) -> None:
    assert _runner(tiny_model("llama"), built.parent).backend == "cpu"
    assert _runner(tiny_model("llama"), built.parent, backend="torch").backend == "torch"


def test_without_a_compiler_pytorch_computes_and_the_log_says_why(
    tmp_path: Path, tiny_model: TinyModel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(build, "_COMPILERS", ("no-such-compiler",))
    monkeypatch.setattr(loading, "variants", lambda: ("avx512",))
    with caplog.at_level(logging.INFO, logger="serving"):
        assert _runner(tiny_model("llama"), tmp_path).backend == "torch"
    assert caplog.messages == ["computing with PyTorch alone: there is no C++ compiler (no-such-compiler)"]
    with pytest.raises(ValueError, match=r"backend cpu cannot be used: there is no C\+\+ compiler"):
        _runner(tiny_model("llama"), tmp_path, backend="cpu")


def test_a_compiler_that_fails_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = tmp_path / "broken"
    compiler.write_text("#!/bin/sh\necho 'note: nothing' >&2\necho 'decoder.cpp:1: error: no headers' >&2\nexit 1\n")
    compiler.chmod(compiler.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(build, "_COMPILERS", (str(compiler),))
    with pytest.raises(NoKernels, match=r"failed: decoder\.cpp:1: error: no headers"):
        built_library(tmp_path / "kernels", variant="avx512")
    assert [path.name for path in (tmp_path / "kernels").iterdir()] == ["lock"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NoKernels, match=f"cannot write to {tmp_path}/file"):
        built_library(tmp_path / "file", variant="avx512")


def test_without_the_instructions_there_are_no_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_processor_flags", lambda: frozenset({"sse2", "avx2", "fma"}))
    with pytest.raises(NoKernels, match="no AVX-512"):
        load_kernels(tmp_path)


def test_the_best_instruction_set_that_works_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The system forbids one, the compiler does not know the next, one cannot be loaded, one multiplies wrongly."""
    tried = []

    class FakeLibrary:
        def __init__(self, path: Path) -> None:
            self.name = path.name
            tried.append(path.name)
            if path.name == "amx-bf16":
                raise NotUsable(path.name)
            if path.name == "broken":
                raise NotLoadable(path.name)

    def build_all_but_one(folder: Path, variant: str) -> Path:
        if variant == "too-new":
            raise NoKernels("the compiler does not know it")
        return folder / variant

    monkeypatch.setattr(loading, "variants", lambda: ("amx-bf16", "too-new", "broken", "avx512-bf16", "avx512"))
    monkeypatch.setattr(loading, "built_library", build_all_but_one)
    monkeypatch.setattr(loading, "Library", FakeLibrary)
    monkeypatch.setattr(loading, "multiplies_right", lambda library: library.name == "avx512")
    assert load_kernels(tmp_path).name == "avx512"  # type: ignore[attr-defined]
    assert tried == [*["amx-bf16"] * 3, "broken", "broken", *["avx512-bf16"] * 3, "avx512"]
    assert (
        "the best kernels for this processor cannot be had: the system does not allow amx-bf16; the compiler does not "
        "know it; the kernels for broken cannot be loaded (broken); the kernels for avx512-bf16 do not multiply right "
        "here"
    ) in caplog.messages


@pytest.mark.parametrize("fault", ["refused", "wrong"])
def test_what_fails_once_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Another instruction set would round differently."""
    tried: list[str] = []

    class FakeLibrary:
        def __init__(self, path: Path) -> None:
            self.name = path.name
            tried.append(path.name)
            if fault == "refused" and len(tried) == 1:
                raise NotUsable(path.name)

    monkeypatch.setattr(loading, "variants", lambda: ("amx-bf16", "avx512"))
    monkeypatch.setattr(loading, "built_library", lambda folder, variant: folder / variant)
    monkeypatch.setattr(loading, "Library", FakeLibrary)
    monkeypatch.setattr(loading, "multiplies_right", lambda library: fault != "wrong" or len(tried) > 1)
    assert load_kernels(tmp_path).name == "amx-bf16"  # type: ignore[attr-defined]
    assert tried == ["amx-bf16", "amx-bf16"]


@needs_kernels
def test_a_library_that_is_damaged_is_built_anew(built: Path) -> None:
    built.unlink()
    built.write_bytes(b"")
    load_kernels(built.parent)
    assert built.stat().st_size > 1000


@needs_kernels
def test_the_kernels_for_tiles_compile(tmp_path: Path) -> None:
    """Wherever they are run: this needs a compiler that knows the instructions, no processor."""
    build.compile_library(tmp_path / "tiles.so", build.flags_of("amx-bf16"))
    assert (tmp_path / "tiles.so").exists()


@pytest.mark.parametrize(("dtype", "kernels"), [("float32", "folder"), ("bfloat16", "none")])
def test_what_the_kernels_are_not_made_for_is_refused(
    tmp_path: Path, tiny_model: TinyModel, dtype: str, kernels: str
) -> None:
    with pytest.raises(ValueError, match=r"backend cpu cannot be used: (the kernels compute in|there is no folder)"):
        _runner(tiny_model("llama"), tmp_path if kernels == "folder" else None, backend="cpu", dtype=dtype)


@needs_kernels
def test_weights_of_fewer_bits_are_read_faster(kernels_folder: Path, tiny_model: TinyModel) -> None:
    def weight_bytes(weight_format: str) -> int:
        return ModelRunner(
            tiny_model("llama"),
            kv_cache_bytes=2**22,
            backend="cpu",
            kernels_folder=kernels_folder,
            weight_format=weight_format,  # type: ignore[arg-type]
        ).weight_bytes

    assert weight_bytes("bfloat16") > 1.7 * weight_bytes("int8")
    assert weight_bytes("int8") > 1.3 * weight_bytes("int4")


def test_the_kernels_bring_no_openmp_runtime_of_their_own(kernels_folder: Path) -> None:
    """There is torch's alone: two would compete for the processor's cores."""
    program = (
        "import sys; from pathlib import Path; from serving.engine.kernels.loading import load_kernels;"
        "load_kernels(Path(sys.argv[1]));"
        "maps = {line.split()[-1] for line in open('/proc/self/maps') if 'libgomp' in line or 'libomp' in line};"
        "print(len(maps), maps)"
    )
    said = subprocess.run(
        [sys.executable, "-c", program, str(kernels_folder)], capture_output=True, text=True, check=True
    ).stdout
    assert said.startswith("1 "), said
    assert torch.__file__.rpartition("/")[0] in said
