"""Weights from a model folder's safetensors files, checked by name and shape before one of them is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import torch

from serving.engine.models.checkpoint import Checkpoint, open_checkpoint
from serving.engine.models.config import ModelConfig
from serving.engine.models.layout import expected_tensors, is_redundant, read_decoder
from serving.engine.models.matrices import DeferredMatrix, all_in_memory, joined
from serving.engine.models.packed import PackedMatrix
from serving.engine.models.stored_weights import BadTensor, Layout, Shape, Wanted, layout_of
from serving.engine.models.weights import DecoderWeights, Matrix, PlainMatrix

_LOADABLE_DTYPES = frozenset({"BF16", "F16", "F32", "F64"})
_OF_RECIPES = frozenset({"input_scale", "input_scale_ub", "input_zero_point", "activation_scale", "output_scale"})
_OF_CACHES = frozenset({"q_scale", "k_scale", "v_scale", "kv_scale"})
"""How a recipe rounds activations, or keys and values: here these are computed and kept in the model's dtype."""


def check_weights(folder: Path, config: ModelConfig) -> None:
    """Compare names, shapes and dtypes with what `config` asks for, reading headers only.

    Raises `ModelFolderProblem` naming the first tensor that is missing, unexpected or of another shape or dtype.
    """
    _check(config, open_checkpoint(folder))


def load_weights(folder: Path, config: ModelConfig, *, dtype: torch.dtype, device: torch.device) -> DecoderWeights:
    """Read the folder's weights by memory map and convert them to `dtype` on `device`; quantised ones stay as they are.

    Nothing refers to the files afterwards. Raises `ModelFolderProblem` as `check_weights` does, and for quantised
    weights whose numbers contradict each other.
    """
    return all_in_memory(open_weights(folder, config, dtype=dtype, device=device))


def open_weights(folder: Path, config: ModelConfig, *, dtype: torch.dtype, device: torch.device) -> DecoderWeights:
    """As `load_weights`, but each matrix is read when it is asked for (see `DeferredMatrix`): who keeps weights in a
    form of its own needs memory for one matrix beside them, not for all.

    The files stay open as long as one of the matrices is kept.
    """
    checkpoint = open_checkpoint(folder)
    modules = _check(config, checkpoint)
    return read_decoder(config, _Source(checkpoint, modules, dtype=dtype, device=device))


@dataclasses.dataclass(frozen=True, slots=True)
class _Module:
    """A module whose weights of this shape are quantised."""

    layout: Layout
    shape: Shape


class _Source:
    """The weights of an open checkpoint; those of `modules` are quantised, the others plain."""

    def __init__(
        self, checkpoint: Checkpoint, modules: Mapping[str, _Module], *, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._checkpoint = checkpoint
        self._modules = modules
        self._dtype = dtype
        self._device = device

    def tensor(self, name: str) -> torch.Tensor:
        """As `Source.tensor`: a copy always, aligned as arithmetic likes it, since pages of a file that is replaced
        must not stay in use. An embedding that is quantised becomes what it stands for, in full."""
        module = name.removesuffix(".weight")
        if module in self._modules:
            return self._module(module, has_bias=False).plain()
        return self._copied(name, self._dtype)

    def matrix(self, *modules: str, bias: bool) -> Matrix:
        """As `Source.matrix`."""
        # Some writers of quantised weights add biases of zeros to modules that have none.
        has_bias = bias or any(self._checkpoint.header(f"{module}.bias") for module in modules)
        return DeferredMatrix(lambda: joined([self._module(module, has_bias=has_bias) for module in modules]))

    def tied(self, embedding: torch.Tensor) -> Matrix:
        """As `Source.tied`."""
        return PlainMatrix(embedding)

    def _module(self, name: str, *, has_bias: bool) -> Matrix:
        module = self._modules.get(name)
        if module is None:
            weight = self.tensor(f"{name}.weight")
            return PlainMatrix(weight, self._bias(name, len(weight)) if has_bias else None)
        wanted = {part: f"{name}.{part}" for part in module.layout.tensors(module.shape)}
        tensors = {
            part: self._copied(tensor) for part, tensor in wanted.items() if self._checkpoint.header(tensor) is not None
        }
        try:
            stored = module.layout.read(module.shape, tensors)
        except BadTensor as error:
            raise self._checkpoint.problem(f"{name}.{error.name}", str(error)) from None
        bias = self._bias(name, module.shape[0]) if has_bias else None
        return PackedMatrix(stored.weights, bias, self._dtype, stored.order)

    def _bias(self, module: str, num_outputs: int) -> torch.Tensor:
        name = f"{module}.bias"
        if self._checkpoint.header(name) is None:
            return torch.zeros(num_outputs, dtype=self._dtype, device=self._device)
        return self.tensor(name)

    def _copied(self, name: str, dtype: torch.dtype | None = None) -> torch.Tensor:
        return self._checkpoint.read(name).to(device=self._device, dtype=dtype, copy=True).contiguous()


def _check(config: ModelConfig, checkpoint: Checkpoint) -> dict[str, _Module]:
    """Raise `ModelFolderProblem` where a tensor is missing, not expected or not as it must be; return what modules are
    quantised."""
    modules: dict[str, _Module] = {}
    known: set[str] = set()
    for name, shape in expected_tensors(config).items():
        module = _quantised_module(config, checkpoint, name, shape)
        if module is None:
            known.add(name)
            _check_tensor(checkpoint, name, Wanted((shape,), _LOADABLE_DTYPES))
            continue
        prefix = name.removesuffix(".weight")
        modules[prefix] = module
        known |= _check_module(checkpoint, prefix, module)
    for name in checkpoint.names:
        if name not in known and not is_redundant(config, name) and not _is_of_recipe(config, name):
            raise checkpoint.problem(name, "this tensor is not expected")
    return modules


def _quantised_module(config: ModelConfig, checkpoint: Checkpoint, name: str, shape: tuple[int, ...]) -> _Module | None:
    if config.quantisation is None or len(shape) != 2 or not name.endswith(".weight"):
        return None
    layout = layout_of(name.removesuffix(".weight"), (shape[0], shape[1]), checkpoint, config.quantisation)
    return None if layout is None else _Module(layout, (shape[0], shape[1]))


def _check_module(checkpoint: Checkpoint, prefix: str, module: _Module) -> set[str]:
    """The names of the module's tensors, all of which are as they must be."""
    if (obstacle := module.layout.obstacle(module.shape)) is not None:
        raise checkpoint.problem(prefix, f"cannot be stored as its tensors say: {obstacle}")
    parts = module.layout.tensors(module.shape) | {
        "bias": Wanted(((module.shape[0],),), _LOADABLE_DTYPES, is_optional=True)
    }
    for part, wanted in parts.items():
        _check_tensor(checkpoint, f"{prefix}.{part}", wanted)
    return {f"{prefix}.{part}" for part in parts}


def _check_tensor(checkpoint: Checkpoint, name: str, wanted: Wanted) -> None:
    if (problem := wanted.problem(checkpoint.header(name))) is not None:
        raise checkpoint.problem(name, problem)


def _is_of_recipe(config: ModelConfig, name: str) -> bool:
    return config.quantisation is not None and name.rpartition(".")[2] in _OF_RECIPES | _OF_CACHES
