"""Rotary position embedding: the table of a model, and its application."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch

from serving.engine.models.rope_config import RopeConfig


def rotary_frequencies(rope: RopeConfig, head_dim: int, *, is_long: bool = False) -> torch.Tensor:
    """Radians a position for each pair of dimensions that is rotated: fp32 `[rotary_dim / 2]`.

    Su et al. 2021, "RoFormer", section 3.2.2. Scaled linearly after Chen et al. 2023, "Extending Context Window of
    Large Language Models via Positional Interpolation", by wavelength as Llama 3.1 does (its `config.json`, and
    transformers' `_compute_llama3_parameters`, whose arithmetic is followed so that results equal its), by number of
    turns (Peng et al. 2023, "YaRN", section 3.2), or pair by pair as found by Ding et al. 2024, "LongRoPE", for
    sequences that are long and those that are not.
    """
    rotary_dim = rope.rotary_dim(head_dim)
    exponents = torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim
    if rope.kind == "longrope":
        factors = torch.tensor(rope.long_factors if is_long else rope.short_factors, dtype=torch.float32)
        return 1.0 / (factors * rope.theta**exponents)
    frequencies: torch.Tensor = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return frequencies / rope.factor
    if rope.kind == "yarn":
        return _stretch_slow_turns(frequencies, rope, rotary_dim)
    if rope.kind == "llama3":
        return _stretch_long_wavelengths(frequencies, rope)
    return frequencies


def _stretch_long_wavelengths(frequencies: torch.Tensor, rope: RopeConfig) -> torch.Tensor:
    context = rope.original_max_position_embeddings
    longest, shortest = context / rope.low_freq_factor, context / rope.high_freq_factor
    wavelengths = 2 * math.pi / frequencies
    stretched = torch.where(wavelengths > longest, frequencies / rope.factor, frequencies)
    blend = (context / wavelengths - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blended = (1 - blend) * stretched / rope.factor + blend * stretched
    between = (wavelengths >= shortest) & (wavelengths <= longest)
    return torch.where(between, blended, stretched)


def _stretch_slow_turns(frequencies: torch.Tensor, rope: RopeConfig, rotary_dim: int) -> torch.Tensor:
    def place(num_turns: float) -> float:
        """Where among the dimensions a pair would be that turns so often in the original context."""
        length = rope.original_max_position_embeddings / (num_turns * 2 * math.pi)
        return rotary_dim * math.log(length) / (2 * math.log(rope.theta))

    first, last = place(rope.beta_fast), place(rope.beta_slow)
    if rope.truncated:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rotary_dim - 1)
    width = last - first or 0.001
    stretched = ((torch.arange(rotary_dim // 2, dtype=torch.float32) - first) / width).clamp(0, 1)
    return frequencies / rope.factor * stretched + frequencies * (1 - stretched)


def rotary_rows(rope: RopeConfig, *, head_dim: int, max_model_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The cosines and sines of every position and pair of dimensions, each fp32 `[num_rows, rotary_dim / 2]`.

    Each is the fp32 number nearest to the cosine or sine of its fp32 angle. PyTorch's are as good, but not always the
    same: on a busy machine, the first call of its vector functions by several threads at once may round otherwise than
    all later ones, and two engines would give two texts.

    Row p is position p. Where long sequences are rotated otherwise, those that are not end before row `rope.long_from`,
    and the rows from there on are the positions of long ones.
    """
    positions = torch.arange(max_model_len, dtype=torch.float32)[:, None]
    angles = positions[: rope.long_from] * rotary_frequencies(rope, head_dim)
    if rope.long_from is not None:
        angles = torch.cat([angles, positions * rotary_frequencies(rope, head_dim, is_long=True)])
    exact = angles.double().numpy()
    cosines, sines = (torch.from_numpy(values.astype(np.float32)) for values in (np.cos(exact), np.sin(exact)))
    return cosines * rope.attention_factor, sines * rope.attention_factor


@dataclasses.dataclass(frozen=True, slots=True)
class Rotation:
    """The cosines and sines of a step's positions, each `[num_tokens, rotary_dim / 2]` in the model's dtype: fewer than
    half a head's dimensions where not all are rotated."""

    cosines: torch.Tensor
    sines: torch.Tensor


class RotaryTable:
    """Owns the cosines and sines of every position a model may reach, each `[num_rows, rotary_dim / 2]` in the model's
    dtype (see `rotary_rows`); never changed after it is made."""

    def __init__(
        self, rope: RopeConfig, *, head_dim: int, max_model_len: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        cosines, sines = rotary_rows(rope, head_dim=head_dim, max_model_len=max_model_len)
        self._cosines = cosines.to(device=device, dtype=dtype)
        self._sines = sines.to(device=device, dtype=dtype)

    def at(self, rows: torch.Tensor) -> Rotation:
        """The rotation of tokens whose rows of the table are `rows` `[num_tokens]`."""
        return Rotation(self._cosines[rows], self._sines[rows])


def rotate(heads: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Rotate `heads` `[num_tokens, num_heads, head_dim]` by their positions' angles; a new tensor.

    The pairs are dimension i and i + rotary_dim / 2, as Hugging Face lays weights out; dimensions from rotary_dim on
    stay as they are. Products and their sum are each rounded to the dtype, as transformers does.
    """
    cosines, sines = rotation.cosines.unsqueeze(1), rotation.sines.unsqueeze(1)  # one for all heads
    half = cosines.shape[-1]
    first, second = heads[..., :half], heads[..., half : 2 * half]
    rotated = torch.empty_like(heads, memory_format=torch.contiguous_format)
    torch.sub(first * cosines, second * sines, out=rotated[..., :half])
    torch.add(second * cosines, first * sines, out=rotated[..., half : 2 * half])
    if 2 * half < heads.shape[-1]:
        rotated[..., 2 * half :] = heads[..., 2 * half :]
    return rotated
