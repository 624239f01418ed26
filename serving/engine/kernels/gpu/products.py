"""Products with weights of 4 or 8 bits, which are read as they are kept and made whole in registers."""

from __future__ import annotations

import dataclasses
import functools

import torch
import triton
import triton.language as tl
from torch.nn import functional as F  # noqa: N812

from serving.engine.models.packed import PackedWeights

MOST_TILED_ROWS = 256
"""Above this many rows arithmetic outweighs reading: weights are made whole a part at a time, and cuBLAS multiplies."""
_PART_BYTES = 24 * 2**20
"""Of weights made whole at once: they are to be read again from the GPU's second cache, not from its memory."""
_MOST_SUMMED_COLUMNS = 32
"""Rows of a tile up to which scaling sums is less work than scaling weights."""
_LEAST_GROUP = 16
_PROGRAMS_A_PROCESSOR = 4
"""Programs that a multiprocessor needs for its share of the memory's bandwidth, about."""
_MOST_SPLITS = 8
_USUAL_PROCESSORS = 132
_FP8_CAPABILITY = (8, 9)


@dataclasses.dataclass(frozen=True, slots=True)
class Tiling:
    """What a program computes: `outputs` by `rows` numbers, over `inputs` at a time; the inputs are dealt out to
    `splits` programs whose sums are added in their order."""

    outputs: int
    rows: int
    inputs: int
    splits: int
    num_warps: int
    num_stages: int


def refusal(weights: PackedWeights) -> str | None:
    """Why these kernels cannot multiply by `weights`, or None where they can."""
    device = weights.quanta.device
    if weights.kind == "fp8" and device.type == "cuda" and _capability(device) < _FP8_CAPABILITY:
        return f"floats of 8 bits need compute capability 8.9; {device} has {'.'.join(map(str, _capability(device)))}"
    group = weights.inputs_per_scale
    num_inputs = weights.num_inputs
    if group < num_inputs and (group < _LEAST_GROUP or group & (group - 1)):
        return f"inputs_per_scale is {group}; it must be a power of two of at least {_LEAST_GROUP}, or all {num_inputs}"
    for name in ("quanta", "scales", "offsets"):
        values = getattr(weights, name)
        if values is not None and not values.is_contiguous():
            return f"{name} are not contiguous"
    return None


def multiply(rows: torch.Tensor, weights: PackedWeights, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`rows` `[num_rows, in]` times `weights` `[out, in]` transposed, plus `bias` `[out]`: `[num_rows, out]`, in the
    rows' dtype.

    Sums are fp32. Up to a few dozen rows, where `inputs_per_scale` allows it, quanta are multiplied as they are, which
    is exact, and a group's sum is scaled; otherwise weights are scaled first and rounded to the rows' dtype. A row's
    result does not depend on how many other rows there are, as long as the same tiling serves them: see `tiling_for`.
    Raises `ValueError` for what `refusal` names.
    """
    problem = refusal(weights)
    if problem is not None:
        raise ValueError(f"packed weights cannot be multiplied on this device: {problem}")
    num_rows, num_outputs = len(rows), weights.num_outputs
    if num_rows > MOST_TILED_ROWS:
        return _multiply_whole(rows, weights, bias)
    product = torch.empty(num_rows, num_outputs, dtype=rows.dtype, device=rows.device)
    if num_rows == 0:
        return product
    tiling = tiling_for(num_rows, weights, num_processors=_num_processors(rows.device))
    _multiply_tiled(rows.contiguous(), weights, bias, product, tiling)
    return product


def dequantise(
    weights: PackedWeights, dtype: torch.dtype, *, first: int = 0, num_outputs: int | None = None
) -> torch.Tensor:
    """The weights of `num_outputs` outputs from `first`, or of all from there: scale · quantum + offset, computed in
    fp32 and rounded to `dtype`, `[num_outputs, in]`."""
    num_inputs = weights.num_inputs
    count = weights.num_outputs - first if num_outputs is None else num_outputs
    whole = torch.empty(count, num_inputs, dtype=dtype, device=weights.quanta.device)
    block = min(1024, triton.next_power_of_2(num_inputs))
    offsets = weights.offsets
    _make_whole[(count, triton.cdiv(num_inputs, block))](
        weights.quanta,
        weights.scales,
        offsets,
        whole,
        first,
        weights.scales.shape[1],
        NUM_INPUTS=num_inputs,
        OUTPUTS_PER_SCALE=weights.outputs_per_scale,
        INPUTS_PER_SCALE=weights.inputs_per_scale,
        IS_INT4=weights.kind == "int4",
        BLOCK=block,
        num_warps=4,
    )
    return whole


def tiling_for(num_rows: int, weights: PackedWeights, *, num_processors: int) -> Tiling:
    """How a product of `num_rows` rows is cut. The same for 1 to 16 rows, so that decoding alone and in company adds up
    the same numbers in the same order; inputs are split where there are too few outputs to keep all processors reading.
    """
    num_outputs, num_inputs = weights.num_outputs, weights.num_inputs
    columns = next(size for size in (16, 32, 64, 128) if size >= min(num_rows, 128))
    outputs = 64 if columns <= 64 else 128
    # A row of a tile is 64 or 128 bytes: whole sectors of memory.
    inputs = 128 if weights.kind == "int4" or columns <= 32 else 64
    inputs = min(inputs, max(32, triton.next_power_of_2(num_inputs)))
    num_programs = triton.cdiv(num_outputs, outputs) * triton.cdiv(num_rows, columns)
    wanted = _PROGRAMS_A_PROCESSOR * num_processors // num_programs
    splits = max(1, min(_MOST_SPLITS, wanted, num_inputs // (4 * inputs)))
    return Tiling(outputs, columns, inputs, splits, num_warps=4 if outputs == 64 else 8, num_stages=4)


def _multiply_tiled(
    rows: torch.Tensor, weights: PackedWeights, bias: torch.Tensor | None, product: torch.Tensor, tiling: Tiling
) -> None:
    num_rows, num_outputs = product.shape
    offsets = weights.offsets
    sums = product
    if tiling.splits > 1:
        sums = torch.empty(tiling.splits, num_rows, num_outputs, dtype=torch.float32, device=rows.device)
    group = weights.inputs_per_scale
    grid = (triton.cdiv(num_rows, tiling.rows), triton.cdiv(num_outputs, tiling.outputs), tiling.splits)
    _multiply_tile[grid](
        rows,
        weights.quanta,
        weights.scales,
        offsets,
        bias if tiling.splits == 1 else None,
        sums,
        num_rows,
        weights.scales.shape[1],
        NUM_OUTPUTS=num_outputs,
        NUM_INPUTS=rows.shape[1],
        OUTPUTS_PER_SCALE=weights.outputs_per_scale,
        INPUTS_PER_SCALE=group,
        IS_INT4=weights.kind == "int4",
        SCALES_SUMS=tiling.rows <= _MOST_SUMMED_COLUMNS and (group % tiling.inputs == 0 or group >= rows.shape[1]),
        OUTPUTS=tiling.outputs,
        ROWS=tiling.rows,
        INPUTS=tiling.inputs,
        SPLITS=tiling.splits,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    if tiling.splits > 1:
        block = min(1024, triton.next_power_of_2(num_outputs))
        _add_splits[(num_rows, triton.cdiv(num_outputs, block))](
            sums, bias, product, num_rows, NUM_OUTPUTS=num_outputs, SPLITS=tiling.splits, BLOCK=block, num_warps=4
        )


def _multiply_whole(rows: torch.Tensor, weights: PackedWeights, bias: torch.Tensor | None) -> torch.Tensor:
    num_outputs, num_inputs = weights.num_outputs, weights.num_inputs
    most = max(1, _PART_BYTES // (num_inputs * rows.dtype.itemsize))
    parts = triton.cdiv(num_outputs, most)
    if parts == 1:
        return F.linear(rows, dequantise(weights, rows.dtype), bias)
    size = triton.cdiv(triton.cdiv(num_outputs, parts), 128) * 128
    product = torch.empty(len(rows), num_outputs, dtype=rows.dtype, device=rows.device)
    for first in range(0, num_outputs, size):
        count = min(size, num_outputs - first)
        part = dequantise(weights, rows.dtype, first=first, num_outputs=count)
        part_bias = None if bias is None else bias[first : first + count]
        product[:, first : first + count] = F.linear(rows, part, part_bias)
    return product


@functools.cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@functools.cache
def _num_processors(device: torch.device) -> int:
    if device.type != "cuda":
        return _USUAL_PROCESSORS
    return torch.cuda.get_device_properties(device).multi_processor_count


@triton.jit(do_not_specialize=["num_rows"])
def _multiply_tile(
    rows,
    quanta,
    scales,
    offsets,
    bias,
    sums,
    num_rows,
    scale_stride,
    NUM_OUTPUTS: tl.constexpr,
    NUM_INPUTS: tl.constexpr,
    OUTPUTS_PER_SCALE: tl.constexpr,
    INPUTS_PER_SCALE: tl.constexpr,
    IS_INT4: tl.constexpr,
    SCALES_SUMS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """A program sums `OUTPUTS` outputs of `ROWS` rows over its split of the inputs. Weights are the left operand, which
    tensor cores take from registers, where they are made whole; so rows are computed as columns.

    int4 keeps the even input in the low half of a byte: even and odd inputs are two products, of the bytes' halves with
    every other number of the rows."""
    dtype: tl.constexpr = rows.dtype.element_ty
    width: tl.constexpr = INPUTS // 2 if IS_INT4 else INPUTS
    row_bytes: tl.constexpr = NUM_INPUTS // 2 if IS_INT4 else NUM_INPUTS
    steps: tl.constexpr = (NUM_INPUTS + INPUTS - 1) // INPUTS
    steps_a_split: tl.constexpr = (steps + SPLITS - 1) // SPLITS
    columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    outputs = tl.program_id(1) * OUTPUTS + tl.arange(0, OUTPUTS)
    split = tl.program_id(2)
    # What lies past the last output or row is computed from the last one's numbers, and not stored.
    known_outputs = tl.minimum(outputs, NUM_OUTPUTS - 1)
    known_columns = tl.minimum(columns, num_rows - 1)
    quantum_starts = quanta + known_outputs.to(tl.int64)[:, None] * row_bytes
    row_starts = rows + known_columns.to(tl.int64)[:, None] * NUM_INPUTS
    scale_starts = scales + known_outputs // OUTPUTS_PER_SCALE * scale_stride
    offset_starts = scale_starts
    if offsets is not None:
        offset_starts = offsets + known_outputs // OUTPUTS_PER_SCALE * scale_stride
    total = tl.zeros([OUTPUTS, ROWS], dtype=tl.float32)
    for step in range(split * steps_a_split, tl.minimum((split + 1) * steps_a_split, steps)):
        first = step * INPUTS
        inputs = first + tl.arange(0, INPUTS)
        byte_places = step * width + tl.arange(0, width)
        if NUM_INPUTS % INPUTS == 0:
            numbers = tl.load(row_starts + inputs[None, :])
            packed = tl.load(quantum_starts + byte_places[None, :])
        else:
            numbers = tl.load(row_starts + inputs[None, :], mask=(inputs < NUM_INPUTS)[None, :], other=0.0)
            packed = tl.load(quantum_starts + byte_places[None, :], mask=(byte_places < row_bytes)[None, :], other=0.0)
        if SCALES_SUMS:
            group = first // INPUTS_PER_SCALE
            part = _product(packed, numbers, tl.zeros([OUTPUTS, ROWS], dtype=tl.float32), IS_INT4, ROWS, width, dtype)
            total += part * tl.load(scale_starts + group).to(tl.float32)[:, None]
            if offsets is not None:
                shift = tl.load(offset_starts + group).to(tl.float32)
                total += shift[:, None] * tl.sum(numbers.to(tl.float32), axis=1)[None, :]
        else:
            total = _scaled_product(
                packed, numbers, total, scale_starts, offset_starts, first, offsets is not None,
                NUM_INPUTS, INPUTS_PER_SCALE, IS_INT4, OUTPUTS, ROWS, INPUTS, width, dtype,
            )  # fmt: skip
    places = columns.to(tl.int64)[None, :] * NUM_OUTPUTS + outputs[:, None]
    if SPLITS > 1:
        places += split.to(tl.int64) * num_rows * NUM_OUTPUTS
    if bias is not None:
        total += tl.load(bias + known_outputs).to(tl.float32)[:, None]
    mask = (columns < num_rows)[None, :] & (outputs < NUM_OUTPUTS)[:, None]
    tl.store(sums + places, total.to(sums.dtype.element_ty), mask=mask)


@triton.jit
def _product(
    packed, numbers, total, IS_INT4: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, DTYPE: tl.constexpr
):
    """`total` plus the quanta of `packed` `[OUTPUTS, WIDTH]` times `numbers` `[ROWS, INPUTS]` transposed."""
    if IS_INT4:
        even, odd = tl.split(tl.reshape(numbers, [ROWS, WIDTH, 2]))
        total = tl.dot(_nibbles(packed & 15, DTYPE), tl.trans(even), total, input_precision="ieee")
        total = tl.dot(_nibbles(packed >> 4, DTYPE), tl.trans(odd), total, input_precision="ieee")
    else:
        total = tl.dot(packed.to(DTYPE), tl.trans(numbers), total, input_precision="ieee")
    return total


@triton.jit
def _nibbles(quanta, DTYPE: tl.constexpr):
    """Numbers 0 to 15, uint8, in `DTYPE`. Put into the lowest bits of a large one that has no fractions, and that one
    taken away again: with two in a register, fewer instructions than a conversion."""
    if tl.bfloat16 == DTYPE:
        numbers = (quanta.to(tl.uint16) | 0x4300).to(tl.bfloat16, bitcast=True) - 128.0
    elif tl.float16 == DTYPE:
        numbers = (quanta.to(tl.uint16) | 0x6400).to(tl.float16, bitcast=True) - 1024.0
    else:
        numbers = quanta.to(DTYPE)
    return numbers.to(DTYPE)


@triton.jit
def _scaled_product(
    packed,
    numbers,
    total,
    scale_starts,
    offset_starts,
    first,
    HAS_OFFSETS: tl.constexpr,
    NUM_INPUTS: tl.constexpr,
    INPUTS_PER_SCALE: tl.constexpr,
    IS_INT4: tl.constexpr,
    OUTPUTS: tl.constexpr,
    ROWS: tl.constexpr,
    INPUTS: tl.constexpr,
    WIDTH: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """As `_product`, of weights that are scaled and rounded to `DTYPE` first."""
    groups: tl.constexpr = INPUTS // INPUTS_PER_SCALE if INPUTS_PER_SCALE < INPUTS else 1
    group = first // INPUTS_PER_SCALE + tl.arange(0, groups)
    # The last step may go past the last group: what it finds there is multiplied by zeros, and must be a number.
    known = tl.minimum(group, (NUM_INPUTS - 1) // INPUTS_PER_SCALE)
    scale = tl.load(scale_starts[:, None] + known[None, :]).to(tl.float32)
    shift = scale
    if HAS_OFFSETS:
        shift = tl.load(offset_starts[:, None] + known[None, :]).to(tl.float32)
    if IS_INT4:
        even, odd = tl.split(tl.reshape(numbers, [ROWS, WIDTH, 2]))
        low = _scaled(packed & 15, scale, shift, HAS_OFFSETS, OUTPUTS, groups, WIDTH, DTYPE)
        high = _scaled(packed >> 4, scale, shift, HAS_OFFSETS, OUTPUTS, groups, WIDTH, DTYPE)
        total = tl.dot(low, tl.trans(even), total, input_precision="ieee")
        total = tl.dot(high, tl.trans(odd), total, input_precision="ieee")
    else:
        whole = _scaled(packed, scale, shift, HAS_OFFSETS, OUTPUTS, groups, WIDTH, DTYPE)
        total = tl.dot(whole, tl.trans(numbers), total, input_precision="ieee")
    return total


@triton.jit
def _scaled(
    quanta,
    scale,
    shift,
    HAS_OFFSETS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """`quanta` `[OUTPUTS, WIDTH]`, of which consecutive ones share one of `GROUPS` scales, as weights in `DTYPE`."""
    grouped = tl.reshape(quanta.to(tl.float32), [OUTPUTS, GROUPS, WIDTH // GROUPS]) * scale[:, :, None]
    if HAS_OFFSETS:
        grouped += shift[:, :, None]
    return tl.reshape(grouped.to(DTYPE), [OUTPUTS, WIDTH])


@triton.jit(do_not_specialize=["num_rows"])
def _add_splits(sums, bias, product, num_rows, NUM_OUTPUTS: tl.constexpr, SPLITS: tl.constexpr, BLOCK: tl.constexpr):
    """A program adds `BLOCK` outputs of one row, split by split in their order."""
    row = tl.program_id(0).to(tl.int64)
    outputs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = outputs < NUM_OUTPUTS
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(sums + (split * num_rows + row) * NUM_OUTPUTS + outputs, mask=mask, other=0.0)
    if bias is not None:
        total += tl.load(bias + outputs, mask=mask, other=0.0).to(tl.float32)
    tl.store(product + row * NUM_OUTPUTS + outputs, total, mask=mask)


@triton.jit(do_not_specialize=["first"])
def _make_whole(
    quanta,
    scales,
    offsets,
    whole,
    first,
    scale_stride,
    NUM_INPUTS: tl.constexpr,
    OUTPUTS_PER_SCALE: tl.constexpr,
    INPUTS_PER_SCALE: tl.constexpr,
    IS_INT4: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program makes `BLOCK` weights of one output whole."""
    row = tl.program_id(0).to(tl.int64)
    output = first + row
    inputs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = inputs < NUM_INPUTS
    if IS_INT4:
        packed = tl.load(quanta + output * (NUM_INPUTS // 2) + inputs // 2, mask=mask, other=0)
        quantum = ((packed >> ((inputs % 2) * 4).to(tl.uint8)) & 15).to(tl.float32)
    else:
        quantum = tl.load(quanta + output * NUM_INPUTS + inputs, mask=mask, other=0.0).to(tl.float32)
    group = inputs // INPUTS_PER_SCALE
    line = output // OUTPUTS_PER_SCALE
    weights = quantum * tl.load(scales + line * scale_stride + group, mask=mask, other=0.0).to(tl.float32)
    if offsets is not None:
        weights += tl.load(offsets + line * scale_stride + group, mask=mask, other=0.0).to(tl.float32)
    tl.store(whole + row * NUM_INPUTS + inputs, weights.to(whole.dtype.element_ty), mask=mask)
