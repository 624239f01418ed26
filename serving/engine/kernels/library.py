"""The kernels' C interface, as `decoder.cpp` declares it."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_double, c_float, c_int64, c_void_p
from pathlib import Path

BF16, INT8, INT4, W8A8 = range(4)
"""`Format` of quantised.h."""


class Matrix(ctypes.Structure):
    """`Matrix` of decoder.cpp."""

    _fields_ = (
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("num_panels", c_int64),
        ("num_pairs", c_int64),
        ("format", c_int64),
    )


class Layer(ctypes.Structure):
    """`Layer` of decoder.cpp."""

    _fields_ = (
        ("input_norm", c_void_p),
        ("mlp_norm", c_void_p),
        ("query_norm", c_void_p),
        ("key_norm", c_void_p),
        ("qkv", Matrix),
        ("output", Matrix),
        ("gate_up", Matrix),
        ("down", Matrix),
    )


class Model(ctypes.Structure):
    """`Model` of decoder.cpp."""

    _fields_ = (
        ("num_layers", c_int64),
        ("hidden_size", c_int64),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("vocab_size", c_int64),
        ("num_blocks", c_int64),
        ("norm_eps", c_float),
        ("layers", POINTER(Layer)),
        ("embedding", c_void_p),
        ("final_norm", c_void_p),
        ("vocabulary", Matrix),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("cache", c_void_p),
    )


class Step(ctypes.Structure):
    """`Step` of decoder.cpp."""

    _fields_ = (
        ("num_rows", c_int64),
        ("num_chunks", c_int64),
        ("num_logit_rows", c_int64),
        ("token_ids", c_void_p),
        ("chunk_of", c_void_p),
        ("chunks", c_void_p),
        ("blocks", c_void_p),
        ("logit_rows", c_void_p),
        ("logits", c_void_p),
        ("is_unsound", c_void_p),
        ("workspace", c_void_p),
        ("seconds", c_double * 3),
    )


class NotUsable(Exception):
    """The system does not let this process use what the kernels were built for."""


class NotLoadable(Exception):
    """The file is no library that can be loaded here; the message says why."""


class Library:
    """The loaded kernels. torch must have been imported before: both share its OpenMP runtime."""

    def __init__(self, path: Path) -> None:
        """Load them; raises `NotUsable` or `NotLoadable`."""
        try:
            loaded = ctypes.CDLL(str(path))
            if not loaded.footplate_is_usable():
                raise NotUsable(path.name)
            self._declare(loaded)
        except (OSError, AttributeError) as error:
            raise NotLoadable(str(error)) from None

    def _declare(self, loaded: ctypes.CDLL) -> None:
        self._multiply = loaded.footplate_multiply
        self._multiply.argtypes = (c_void_p, c_int64, c_int64, POINTER(Matrix), c_void_p)
        self._multiply.restype = None
        self._workspace_bytes = loaded.footplate_workspace_bytes
        self._workspace_bytes.argtypes = (POINTER(Model), c_int64)
        self._workspace_bytes.restype = c_int64
        self._forward = loaded.footplate_forward
        self._forward.argtypes = (POINTER(Model), POINTER(Step), c_int64, c_int64)
        self._forward.restype = None

    def multiply(self, matrix: Matrix, rows: int, *, stride: int, num_rows: int, out: int) -> None:
        """`num_rows` bf16 rows at address `rows` times `matrix`, as fp32 `[num_rows, 16 * num_panels]` at `out`."""
        self._multiply(rows, stride, num_rows, ctypes.byref(matrix), out)

    def workspace_bytes(self, model: Model, *, num_rows: int) -> int:
        """Memory that a step of `num_rows` rows needs."""
        return int(self._workspace_bytes(ctypes.byref(model), num_rows))

    def forward(self, model: Model, step: Step, *, capacity: int, num_threads: int) -> None:
        """Compute `step`, whose workspace was made for `capacity` rows. Releases the interpreter's lock meanwhile."""
        self._forward(ctypes.byref(model), ctypes.byref(step), capacity, num_threads)
