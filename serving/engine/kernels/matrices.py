"""A weight matrix in the kernels' layout and its C structure."""

from __future__ import annotations

import torch

from serving.engine.kernels import library
from serving.engine.kernels.library import Library
from serving.engine.kernels.memory import LargePages
from serving.engine.kernels.packing import COLUMNS, INNER_MULTIPLE, padded, panels_of
from serving.engine.kernels.quantised import (
    PANELS,
    QuantisedMatrix,
    WeightFormat,
    packed_quanta,
    padded_to_panels,
    quantised,
)

_FORMATS: dict[WeightFormat, int] = {
    "bfloat16": library.BF16,
    "int8": library.INT8,
    "int4": library.INT4,
    "w8a8": library.W8A8,
}


class KernelMatrix:
    """Owns the packed weights of one product and its bias; never changed after it is made."""

    def __init__(
        self,
        weight: torch.Tensor | QuantisedMatrix,
        bias: torch.Tensor | None = None,
        *,
        weight_format: WeightFormat = "bfloat16",
        memory: LargePages | None = None,
    ) -> None:
        """`weight` bf16 `[out, in]`, which is kept in `weight_format`, or quantised already, which it stays; `bias`
        `[out]`. Both are padded with zeros to panels, which `memory` keeps."""
        whole = _whole(weight, weight_format)
        if isinstance(whole, QuantisedMatrix):
            panels, shape, kept_as, columns = packed_quanta(whole), whole.quanta.shape, whole.format, PANELS * COLUMNS
        else:
            panels, shape, kept_as, columns = panels_of(whole), whole.shape, "bfloat16", COLUMNS
        self._panels = panels if memory is None else memory.keep(panels)
        self._bias = None if bias is None else padded(bias.float(), 0, columns).contiguous()
        self.num_bytes = self._panels.nbytes
        """What a product reads."""
        self.structure = library.Matrix(
            panels=self._panels.data_ptr(),
            bias=None if self._bias is None else self._bias.data_ptr(),
            num_panels=shape[0] // COLUMNS,
            num_pairs=shape[1] // 2,
            format=_FORMATS[kept_as],
        )

    def times(self, rows: torch.Tensor, kernels: Library) -> torch.Tensor:
        """`rows` bf16 `[num_rows, in]` times the weights, without the bias: fp32 `[num_rows, padded out]`."""
        whole = padded(rows, 1, INNER_MULTIPLE).contiguous()
        out = torch.empty(len(rows), self.structure.num_panels * COLUMNS, dtype=torch.float32)
        kernels.multiply(
            self.structure, whole.data_ptr(), stride=whole.shape[1], num_rows=len(rows), out=out.data_ptr()
        )
        return out


def _whole(weight: torch.Tensor | QuantisedMatrix, weight_format: WeightFormat) -> torch.Tensor | QuantisedMatrix:
    """`weight` in its format, padded to whole panels."""
    if isinstance(weight, QuantisedMatrix):
        return padded_to_panels(weight)
    columns = COLUMNS if weight_format == "bfloat16" else PANELS * COLUMNS
    whole = padded(padded(weight, 0, columns), 1, INNER_MULTIPLE)
    return whole if weight_format == "bfloat16" else quantised(whole, weight_format)
