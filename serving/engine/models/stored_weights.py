"""How folders store the quantised weights of one module, layout by layout: what they must hold, and what it means."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Protocol

import torch

from serving.engine.models.checkpoint import Checkpoint, Header
from serving.engine.models.packed import PackedWeights, narrowed, packed_nibbles, unpacked_nibbles
from serving.engine.models.quantisation_config import Quantisation

_INTEGERS = frozenset({"I32", "I64"})
_SCALES = frozenset({"BF16", "F16", "F32"})
_AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""In which nibble of eight AWQ keeps an output: even ones first (AutoAWQ's order 0 2 4 6 1 3 5 7)."""
_QUANTISED_DTYPES = {"F8_E4M3": "fp8", "I8": "int8"}

Shape = tuple[int, int]
"""Outputs and inputs."""


class BadTensor(ValueError):
    """The numbers of the tensor called `name` in its module cannot be what its layout says."""

    def __init__(self, name: str, problem: str) -> None:
        super().__init__(problem)
        self.name = name


@dataclasses.dataclass(frozen=True, slots=True)
class Wanted:
    """What a tensor must be like: one of `shapes`, one of `dtypes`."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: frozenset[str]
    is_optional: bool = False

    def problem(self, header: Header | None) -> str | None:
        """What is wrong with a tensor of this `header`; None where nothing is."""
        if header is None:
            return None if self.is_optional else "this tensor is missing"
        if header.shape not in self.shapes:
            return f"has shape {list(header.shape)}, not {' or '.join(str(list(shape)) for shape in self.shapes)}"
        if header.dtype not in self.dtypes:
            return f"has dtype {header.dtype}; supported are {', '.join(sorted(self.dtypes))}"
        return None


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """A module's weights as they were found. `order` is explained at `PackedMatrix`."""

    weights: PackedWeights
    order: torch.Tensor | None = None


class Layout(Protocol):
    """How one module's weights are stored. Owns nothing."""

    def obstacle(self, shape: Shape) -> str | None:
        """Why weights of this shape cannot be stored so; None where they can."""
        ...

    def tensors(self, shape: Shape) -> dict[str, Wanted]:
        """The tensors of a module with weights of this shape, by the name that follows the module's."""
        ...

    def read(self, shape: Shape, tensors: Mapping[str, torch.Tensor]) -> Stored:
        """The weights that the module's `tensors` say, on their device. Raises `BadTensor`."""
        ...


def layout_of(module: str, shape: Shape, checkpoint: Checkpoint, quantisation: Quantisation) -> Layout | None:
    """How `module`, whose weights have this shape, is stored in the checkpoint; None where its weight is plain.

    Its tensors say so: recipes name exceptions by patterns that each library reads in another way.
    """

    def header(suffix: str) -> Header | None:
        return checkpoint.header(f"{module}.{suffix}")

    if quantisation.method in {"awq", "gptq"}:
        packed = header("qweight")
        if packed is None:
            return None
        if quantisation.method == "awq":
            return AwqLayout(quantisation.group_size or shape[1])
        return GptqLayout(
            quantisation.bits or _bits(packed.shape[0] if packed.shape else 0, shape[1]),
            _group_size(quantisation, header("scales"), 0, shape[1]),
            zeros_less_one=quantisation.zeros_less_one,
        )
    if quantisation.method == "compressed-tensors" and (packed := header("weight_packed")) is not None:
        bits = _bits(packed.shape[-1] if packed.shape else 0, shape[1])
        return PackQuantizedLayout(bits, _group_size(quantisation, header("weight_scale"), 1, shape[1]))
    plain = header("weight")
    if plain is None or plain.dtype not in _QUANTISED_DTYPES:
        return None
    if plain.dtype == "F8_E4M3":
        inverse = header("weight_scale_inv") is not None
        return Fp8Layout("weight_scale_inv" if inverse else "weight_scale", quantisation.block)
    if quantisation.method != "compressed-tensors":
        return None
    return Int8Layout(_group_size(quantisation, header("weight_scale"), 1, shape[1]))


@dataclasses.dataclass(frozen=True, slots=True)
class AwqLayout:
    """AutoAWQ's `gemm` version (Lin et al. 2023): weight[o, i] = (quantum[i, o] - zero[group, o]) · scale[group, o],
    `group_size` inputs a group; eight outputs in an int32, in an order of their own."""

    group_size: int

    def obstacle(self, shape: Shape) -> str | None:
        """As `Layout.obstacle`."""
        return _not_multiple(shape[0], "outputs", 8) or _not_multiple(shape[1], "inputs", self.group_size)

    def tensors(self, shape: Shape) -> dict[str, Wanted]:
        """As `Layout.tensors`."""
        outputs, inputs = shape
        groups = inputs // self.group_size
        return {
            "qweight": Wanted(((inputs, outputs // 8),), frozenset({"I32"})),
            "qzeros": Wanted(((groups, outputs // 8),), frozenset({"I32"})),
            "scales": Wanted(((groups, outputs),), _SCALES),
        }

    def read(self, shape: Shape, tensors: Mapping[str, torch.Tensor]) -> Stored:
        """As `Layout.read`."""
        quanta = _awq_nibbles(tensors["qweight"]).T.contiguous()
        zeros = _awq_nibbles(tensors["qzeros"]).T
        scales = tensors["scales"].float().T
        return Stored(_int4(packed_nibbles(quanta), scales, zeros, self.group_size))


@dataclasses.dataclass(frozen=True, slots=True)
class GptqLayout:
    """AutoGPTQ's (Frantar et al. 2022): weight[o, i] = (quantum[i, o] - zero[group of i, o]) · scale[group of i, o];
    consecutive inputs of an output in an int32, consecutive outputs in one of the zeros. `g_idx` has each input's
    group, which follows from its number where the folder does not say."""

    bits: int
    group_size: int
    zeros_less_one: bool

    def obstacle(self, shape: Shape) -> str | None:
        """As `Layout.obstacle`."""
        each = 32 // self.bits
        return (
            _not_multiple(shape[0], "outputs", each)
            or _not_multiple(shape[1], "inputs", each)
            or _not_multiple(shape[1], "inputs", self.group_size)
        )

    def tensors(self, shape: Shape) -> dict[str, Wanted]:
        """As `Layout.tensors`."""
        outputs, inputs = shape
        groups, each = inputs // self.group_size, 32 // self.bits
        return {
            "qweight": Wanted(((inputs // each, outputs),), frozenset({"I32"})),
            "qzeros": Wanted(((groups, outputs // each),), frozenset({"I32"})),
            "scales": Wanted(((groups, outputs),), _SCALES),
            "g_idx": Wanted(((inputs,),), _INTEGERS, is_optional=True),
        }

    def read(self, shape: Shape, tensors: Mapping[str, torch.Tensor]) -> Stored:
        """As `Layout.read`."""
        quanta = _bytes(tensors["qweight"].T)
        zeros = tensors["qzeros"]
        if self.zeros_less_one:
            # Of whole words, with the carry: so a zero of 0, which was stored as -1, gets back what it took.
            zeros = zeros + (0x11111111 if self.bits == 4 else 0x01010101)
        zeros = _unpacked(_bytes(zeros), self.bits).T
        scales = tensors["scales"].float().T
        return _in_groups(self.bits, quanta, scales, zeros, self.group_size, tensors.get("g_idx"), "g_idx")


@dataclasses.dataclass(frozen=True, slots=True)
class PackQuantizedLayout:
    """compressed-tensors' `pack-quantized`: weight[o, i] = (quantum[o, i] - zero[o, group of i]) · scale[o, group of
    i], both stored with half the range added, consecutive inputs in an int32, and in one of the zeros consecutive
    outputs. Without zeros, all are in the middle of the range."""

    bits: int
    group_size: int

    def obstacle(self, shape: Shape) -> str | None:
        """As `Layout.obstacle`."""
        return _not_multiple(shape[1], "inputs", 32 // self.bits) or _not_multiple(shape[1], "inputs", self.group_size)

    def tensors(self, shape: Shape) -> dict[str, Wanted]:
        """As `Layout.tensors`."""
        outputs, inputs = shape
        each = 32 // self.bits
        return {
            "weight_packed": Wanted(((outputs, inputs // each),), frozenset({"I32"})),
            "weight_scale": Wanted(_by_groups(shape, self.group_size), _SCALES),
            "weight_zero_point": Wanted(
                ((math.ceil(outputs / each), inputs // self.group_size),), frozenset({"I32"}), is_optional=True
            ),
            "weight_g_idx": Wanted(((inputs,),), _INTEGERS, is_optional=True),
            "weight_shape": Wanted(((2,),), _INTEGERS, is_optional=True),
        }

    def read(self, shape: Shape, tensors: Mapping[str, torch.Tensor]) -> Stored:
        """As `Layout.read`."""
        scales = _for_all_outputs(tensors["weight_scale"].float(), shape[0])
        packed_zeros = tensors.get("weight_zero_point")
        if packed_zeros is None:
            zeros = torch.full_like(scales, 1 << (self.bits - 1))
        else:
            zeros = _unpacked(_bytes(packed_zeros.T), self.bits)[:, : shape[0]].T
        order = tensors.get("weight_g_idx")
        if order is not None and (order < 0).all():  # the library's way to say that there is none
            order = None
        quanta = _bytes(tensors["weight_packed"])
        return _in_groups(self.bits, quanta, scales, zeros, self.group_size, order, "weight_g_idx")


@dataclasses.dataclass(frozen=True, slots=True)
class Fp8Layout:
    """8-bit floats (e4m3): weight[o, i] = quantum[o, i] · scale, one scale for all, one an output, or one for a `block`
    of outputs by inputs (DeepSeek-AI 2024, "DeepSeek-V3", section 3.3)."""

    scale_name: str
    block: tuple[int, int] | None

    def obstacle(self, shape: Shape) -> str | None:
        """As `Layout.obstacle`."""
        return None

    def tensors(self, shape: Shape) -> dict[str, Wanted]:
        """As `Layout.tensors`."""
        shapes = [(), (1,), (1, 1), (shape[0],), (shape[0], 1)] if self.block is None else [self._blocks(shape)]
        return {
            "weight": Wanted((shape,), frozenset({"F8_E4M3"})),
            self.scale_name: Wanted(tuple(shapes), _SCALES | {"F8_E8M0"}),
        }

    def read(self, shape: Shape, tensors: Mapping[str, torch.Tensor]) -> Stored:
        """As `Layout.read`."""
        # A view of the file must not be kept, and scales are few: they gain nothing from fewer bytes.
        quanta, scales = tensors["weight"].contiguous(), tensors[self.scale_name].float()
        if self.block is not None:
            return Stored(PackedWeights("fp8", quanta, scales.contiguous(), None, *self.block))
        outputs_per_scale = shape[0] if scales.numel() == 1 else 1
        return Stored(PackedWeights("fp8", quanta, scales.reshape(-1, 1), None, outputs_per_scale, shape[1]))

    def _blocks(self, shape: Shape) -> tuple[int, ...]:
        assert self.block is not None, "only where there are blocks"
        return math.ceil(shape[0] / self.block[0]), math.ceil(shape[1] / self.block[1])


@dataclasses.dataclass(frozen=True, slots=True)
class Int8Layout:
    """compressed-tensors' `int-quantized`: weight[o, i] = (quantum[o, i] - zero[o, group of i]) · scale[o, group of i],
    bytes as they are; without zeros, these are 0."""

    group_size: int

    def obstacle(self, shape: Shape) -> str | None:
        """As `Layout.obstacle`."""
        return _not_multiple(shape[1], "inputs", self.group_size)

    def tensors(self, shape: Shape) -> dict[str, Wanted]:
        """As `Layout.tensors`."""
        groups = _by_groups(shape, self.group_size)
        return {
            "weight": Wanted((shape,), frozenset({"I8"})),
            "weight_scale": Wanted(groups, _SCALES),
            "weight_zero_point": Wanted(groups, frozenset({"I8"}), is_optional=True),
        }

    def read(self, shape: Shape, tensors: Mapping[str, torch.Tensor]) -> Stored:
        """As `Layout.read`."""
        scales = _for_all_outputs(tensors["weight_scale"].float(), shape[0])
        zeros = tensors.get("weight_zero_point")
        offsets = None if zeros is None else -_for_all_outputs(zeros.float(), shape[0]) * scales
        return Stored(_int8(tensors["weight"].contiguous(), scales, offsets, self.group_size))


def _bits(num_words: int, num_inputs: int) -> int:
    """4 or 8, whichever makes so many int32 of so many inputs; 4 where neither does, for the refusal that follows."""
    return 8 if num_words * 4 == num_inputs else 4


def _group_size(quantisation: Quantisation, scales: Header | None, dim: int, num_inputs: int) -> int:
    """Inputs that share a scale: as the recipe says, or where modules differ as many `scales` as there are."""
    if quantisation.group_size is not None:
        return quantisation.group_size or num_inputs
    num_groups = scales.shape[dim] if scales is not None and len(scales.shape) == 2 else 1
    return max(1, num_inputs // max(1, num_groups))


def _by_groups(shape: Shape, group_size: int) -> tuple[tuple[int, ...], ...]:
    """The shapes in which compressed-tensors writes a number a group, or one for all."""
    groups = shape[1] // group_size
    return ((shape[0], groups), (shape[0],), (1,), ()) if groups == 1 else ((shape[0], groups),)


def _for_all_outputs(values: torch.Tensor, num_outputs: int) -> torch.Tensor:
    """What `_by_groups` allows, as `[num_outputs, groups]`."""
    return values.reshape(-1, 1).expand(num_outputs, 1) if values.dim() < 2 else values


def _not_multiple(number: int, name: str, divisor: int) -> str | None:
    return f"its {number} {name} are no multiple of {divisor}" if number % divisor else None


def _bytes(words: torch.Tensor) -> torch.Tensor:
    """int32 `[n, m]` as uint8 `[n, 4 * m]`, each word's lowest byte first."""
    return words.contiguous().view(torch.uint8)


def _unpacked(values: torch.Tensor, bits: int) -> torch.Tensor:
    return unpacked_nibbles(values) if bits == 4 else values


def _awq_nibbles(words: torch.Tensor) -> torch.Tensor:
    """int32 `[n, out / 8]` as uint8 `[n, out]` in the outputs' order."""
    stored = unpacked_nibbles(_bytes(words)).view(len(words), -1, 8)
    return stored[..., list(_AWQ_PLACES)].flatten(1)


def _in_groups(
    bits: int,
    quanta: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor,
    group_size: int,
    groups: torch.Tensor | None,
    groups_name: str,
) -> Stored:
    """Weights of bytes `quanta` `[out, in * bits / 8]` that are to be read without sign, and `zeros` and `scales`
    `[out, groups]`. Where `groups` `[in]` has the group of each input, inputs are put into their groups' order."""
    order = None if groups is None else _order(groups.long(), group_size, groups_name)
    if order is not None:
        reordered = _unpacked(quanta, bits)[:, order]
        quanta = packed_nibbles(reordered) if bits == 4 else reordered
    if bits == 4:
        return Stored(_int4(quanta, scales, zeros, group_size), order)
    signed = (quanta ^ 128).view(torch.int8)
    return Stored(_int8(signed, scales, (128.0 - zeros.float()) * scales, group_size), order)


def _order(groups: torch.Tensor, group_size: int, name: str) -> torch.Tensor | None:
    """The inputs in the order of their `groups` `[in]`; None where they are in it already."""
    num_groups = len(groups) // group_size
    if int(groups.min()) < 0 or int(groups.max()) >= num_groups:
        found = f"{int(groups.min())} to {int(groups.max())}"
        raise BadTensor(name, f"has groups {found}, where there are {num_groups} (0 to {num_groups - 1})")
    sizes = torch.bincount(groups, minlength=num_groups)
    if not (sizes == group_size).all():
        wrong = int((sizes != group_size).nonzero()[0])
        raise BadTensor(name, f"puts {int(sizes[wrong])} inputs into group {wrong}, not {group_size}")
    order = groups.argsort(stable=True)
    return None if torch.equal(order, torch.arange(len(order), device=order.device)) else order


def _int4(quanta: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor, group_size: int) -> PackedWeights:
    # The product of a zero of 4 bits and a scale of 11 is exact in fp32: a quantum that is the zero means 0.
    offsets = -zeros.float() * scales
    return PackedWeights("int4", quanta, _kept(scales), _kept(offsets), 1, group_size)


def _int8(quanta: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor | None, group_size: int) -> PackedWeights:
    has_offsets = offsets is not None and bool(offsets.any())
    return PackedWeights(
        "int8", quanta, _kept(scales), _kept(offsets) if has_offsets and offsets is not None else None, 1, group_size
    )


def _kept(values: torch.Tensor) -> torch.Tensor:
    return narrowed(values).contiguous()
