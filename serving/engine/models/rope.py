"""Rotary position embedding: the table of a model, and its application."""

from __future__ import annotations

import math

import torch

from serving.engine.models.config import RopeConfig


def rotary_frequencies(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """Radians a position for each pair of dimensions: fp32 `[head_dim / 2]`.

    Su et al. 2021, "RoFormer", section 3.2.2. Scaled linearly after Chen et al. 2023, "Extending Context Window of
    Large Language Models via Positional Interpolation", or by wavelength as Llama 3.1 does (its `config.json`, and
    transformers' `_compute_llama3_parameters`, whose arithmetic is followed so that results equal its).
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies: torch.Tensor = 1.0 / (rope.theta**exponents)
    if rope.kind == "linear":
        return frequencies / rope.factor
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


def rotary_angles(rope: RopeConfig, *, head_dim: int, max_model_len: int) -> torch.Tensor:
    """The angle of every position and pair of dimensions, fp32 `[max_model_len, head_dim / 2]`."""
    return torch.arange(max_model_len, dtype=torch.float32)[:, None] * rotary_frequencies(rope, head_dim)


class RotaryTable:
    """Owns the cosines and sines of every position a model may reach, each `[max_model_len, head_dim / 2]` in the
    model's dtype; never changed after it is made."""

    def __init__(
        self, rope: RopeConfig, *, head_dim: int, max_model_len: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        angles = rotary_angles(rope, head_dim=head_dim, max_model_len=max_model_len)
        self._cosines = angles.cos().to(device=device, dtype=dtype)
        self._sines = angles.sin().to(device=device, dtype=dtype)

    def at(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of `positions` `[num_tokens]`, each `[num_tokens, 1, head_dim / 2]` (one for all heads)."""
        return self._cosines[positions].unsqueeze(1), self._sines[positions].unsqueeze(1)


def rotate(heads: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    """Rotate `heads` `[num_tokens, num_heads, head_dim]` by their positions' angles; a new tensor.

    The pairs are dimension i and i + head_dim / 2, as Hugging Face lays weights out. Products and their sum are each
    rounded to the dtype, as transformers does.
    """
    half = heads.shape[-1] // 2
    first, second = heads[..., :half], heads[..., half:]
    rotated = torch.empty_like(heads, memory_format=torch.contiguous_format)
    torch.sub(first * cosines, second * sines, out=rotated[..., :half])
    torch.add(second * cosines, first * sines, out=rotated[..., half:])
    return rotated
