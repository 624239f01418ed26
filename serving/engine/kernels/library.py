"""The kernels' C interface, as `decoder.cpp` declares it."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
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
        ("window", c_int64),
    )


class Model(ctypes.Structure):
    """`Model` of decoder.cpp."""

    _fields_ = (
        ("num_layers", c_int64),
        ("hidden_size", c_int64),
        ("num_heads", c_int64),
        ("num_kv_heads", c_int64),
        ("head_dim", c_int64),
        ("rotary_dim", c_int64),
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
        ("num_hidden_rows", c_int64),
        ("token_ids", c_void_p),
        ("chunk_of", c_void_p),
        ("chunks", c_void_p),
        ("blocks", c_void_p),
        ("logit_rows", c_void_p),
        ("logits", c_void_p),
        ("hidden_rows", c_void_p),
        ("hidden", c_void_p),
        ("is_unsound", c_void_p),
        ("workspace", c_void_p),
        ("seconds", c_double * 3),
    )


class NotUsable(Exception):
    """The system does not let this process use what the kernels were built for."""


class NotLoadable(Exception):
    """The file is no library that can be loaded here; the message says why."""


class Library:
    """The loaded kernels."""

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
        self._forward.argtypes = (c_void_p, POINTER(Model), POINTER(Step), c_int64)
        self._forward.restype = None
        self._start_crew = loaded.footplate_start_crew
        self._start_crew.argtypes = (c_int64,)
        self._start_crew.restype = c_void_p
        self._end_crew = loaded.footplate_end_crew
        self._end_crew.argtypes = (c_void_p,)
        self._end_crew.restype = None

    def multiply(self, matrix: Matrix, rows: int, *, stride: int, num_rows: int, out: int) -> None:
        """`num_rows` bf16 rows at address `rows` times `matrix`, as fp32 `[num_rows, 16 * num_panels]` at `out`."""
        self._multiply(rows, stride, num_rows, ctypes.byref(matrix), out)

    def workspace_bytes(self, model: Model, *, num_rows: int) -> int:
        """Memory that a step of `num_rows` rows needs."""
        return int(self._workspace_bytes(ctypes.byref(model), num_rows))

    def start_crew(self, *, num_threads: int) -> Crew:
        """The threads that compute steps: the caller's, and others that sleep between steps."""
        return Crew(self._start_crew(num_threads), end=self._end_crew)

    def forward(self, model: Model, step: Step, *, capacity: int, crew: Crew) -> None:
        """Compute `step`, whose workspace was made for `capacity` rows. Releases the interpreter's lock meanwhile."""
        self._forward(crew.address, ctypes.byref(model), ctypes.byref(step), capacity)


class Crew:
    """Owns threads of the kernels until `end`, which must come before what they computed on goes."""

    def __init__(self, address: int, *, end: Callable[[int], None]) -> None:
        """Made by `Library.start_crew`."""
        self.address = address
        self._end = end

    def end(self) -> None:
        """End the threads and wait for them; once."""
        self._end(self.address)
