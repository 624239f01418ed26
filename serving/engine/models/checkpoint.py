"""The safetensors files of a model folder."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from serving.engine.models.problem import ModelFolderProblem

_SINGLE_FILE = "model.safetensors"
_INDEX_FILE = "model.safetensors.index.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """What a file says of a tensor before it is read. `dtype` is the format's own name, as `BF16`."""

    shape: tuple[int, ...]
    dtype: str


class Checkpoint:
    """Owns the open files of one model folder, whose tensors it knows by their names."""

    def __init__(self, folder: Path, files: Mapping[str, Any]) -> None:
        """Made by `open_checkpoint`: `files` has the open file of each tensor."""
        self.folder = folder
        self._files = files

    @property
    def names(self) -> Iterator[str]:
        """Of all tensors."""
        return iter(self._files)

    def header(self, name: str) -> Header | None:
        """Shape and dtype of the tensor called `name`; None where there is none."""
        file = self._files.get(name)
        if file is None:
            return None
        found = file.get_slice(name)
        return Header(tuple(found.get_shape()), found.get_dtype())

    def read(self, name: str) -> torch.Tensor:
        """The tensor as it is stored, in memory that may be a view of the file: copy it to keep it."""
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor

    def problem(self, name: str, problem: str) -> ModelFolderProblem:
        """The exception about the tensor called `name`."""
        return ModelFolderProblem(self.folder, name, problem)


def open_checkpoint(folder: Path) -> Checkpoint:
    """The tensors of the folder's safetensors files, which are closed when nothing refers to the checkpoint any more.

    Raises `ModelFolderProblem` for a file that is missing or cannot be read.
    """
    by_tensor: dict[str, Any] = {}
    for name in _weight_files(folder):
        try:
            file: Any = safe_open(folder / name, framework="pt", device="cpu")
        except FileNotFoundError:
            raise ModelFolderProblem(folder, name, "there is no such file") from None
        except (OSError, SafetensorError) as error:
            raise ModelFolderProblem(folder, name, f"cannot be read as safetensors ({error})") from None
        for tensor in file.keys():  # noqa: SIM118 (no mapping)
            if tensor in by_tensor:
                raise ModelFolderProblem(folder, name, f"holds {tensor}, and so does another file")
            by_tensor[tensor] = file
    return Checkpoint(folder, by_tensor)


def _weight_files(folder: Path) -> list[str]:
    if (folder / _SINGLE_FILE).exists():
        return [_SINGLE_FILE]
    if not (folder / _INDEX_FILE).exists():
        raise ModelFolderProblem(folder, _SINGLE_FILE, f"there is neither this file nor {_INDEX_FILE}")
    try:
        files = set(json.loads((folder / _INDEX_FILE).read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelFolderProblem(folder, _INDEX_FILE, f"cannot be read ({error!r})") from None
    for name in files:
        if not isinstance(name, str) or Path(name).name != name:
            raise ModelFolderProblem(folder, _INDEX_FILE, f"names {name!r}, which is not a file of this folder")
    return sorted(files)
