"""A model whose decode steps are recorded: the host says what has changed, and the device does all else by itself."""

from __future__ import annotations

import bisect
import dataclasses
import logging
from collections.abc import Sequence
from typing import Any, Protocol, cast

import numpy as np
import torch

from serving.engine.attention.base import AttentionBackend, AttentionChunk
from serving.engine.graphs import CudaRecorder, PlainRecorder, Recorder, Work, graph_sizes
from serving.engine.kv_cache import BLOCK_SIZE
from serving.engine.models.config import ModelConfig
from serving.engine.models.model import Awaited, Batch, Computed
from serving.engine.models.torch_model import Prepared, TorchModel
from serving.engine.models.weights import DecoderWeights
from serving.engine.transfers import upload_into

_log = logging.getLogger(__name__)


class StaticAttention(AttentionBackend, Protocol):
    """Attention whose index tensors may stay where they are from step to step."""

    def static_batch(self, max_rows: int, max_blocks: int) -> Any:
        """Index tensors for steps of up to `max_rows` sequences that decode, with a row and at most `max_blocks` blocks
        each; all of it padding, which stores nothing and comes to any numbers."""
        ...

    def first_rows(self, static: Any, num_rows: int) -> Any:
        """The `batch` for `AttentionBackend.attend` of the first `num_rows` rows of `static`: the same memory."""
        ...

    def fill(self, static: Any, chunks: Sequence[AttentionChunk]) -> None:
        """Make `static` that of `chunks`, which have a row each, in order; rows after theirs become padding. The host
        does not wait."""
        ...


@dataclasses.dataclass(frozen=True, slots=True)
class _Replay:
    """A step to be replayed: `num_rows` of the `size` that was recorded."""

    size: int
    num_rows: int


class NoTriton(Exception):
    """Triton's kernels cannot be had here; the message says why."""


def make_gpu_model(
    config: ModelConfig,
    weights: DecoderWeights,
    *,
    num_blocks: int,
    dtype: torch.dtype,
    device: torch.device,
    max_graph_rows: int,
) -> GpuModel:
    """A model computed by Triton's kernels, and by cuBLAS, on a GPU; on a CPU by Triton's interpreter, where it was
    asked for. Raises `NoTriton`, and `KVCacheProblem` where memory is short."""
    try:
        from serving.engine.models.gpu_operations import GpuOperations
    except ImportError as error:
        raise NoTriton(f"Triton cannot be imported ({error})") from None
    try:
        model = TorchModel(
            config,
            weights,
            num_blocks=num_blocks,
            dtype=dtype,
            device=device,
            attention="triton",
            make_operations=GpuOperations,
        )
    except ValueError as error:
        raise NoTriton(str(error)) from None
    recorder = CudaRecorder(device) if device.type == "cuda" else PlainRecorder()
    return GpuModel(model, recorder=recorder, max_rows=max_graph_rows, max_model_len=config.max_model_len)


class GpuModel:
    """Owns what a decode step reads and writes while it is replayed, and a recording for each size of step; on the
    engine's thread.

    A step of single tokens whose logits are all wanted is padded to the next size that was recorded, and replayed; all
    other steps are computed as they come. Padding has token 0 at position 0, stores nothing, and nobody reads what is
    computed of it.
    """

    def __init__(self, model: TorchModel, *, recorder: Recorder, max_rows: int, max_model_len: int) -> None:
        """Nothing is recorded before `record_steps`, and then for no more than `max_rows` sequences of `max_model_len`
        tokens each. The model's attention backend must be a `StaticAttention`."""
        self._model = model
        self._recorder = recorder
        self._sizes = graph_sizes(max_rows)
        self._max_model_len = max_model_len
        self._recordings: dict[int, Work] = {}
        self._buffers: _Buffers | None = None

    @property
    def name(self) -> str:
        """As `Model.name`."""
        return self._model.name

    @property
    def num_blocks(self) -> int:
        """As `Model.num_blocks`."""
        return self._model.num_blocks

    @property
    def weight_bytes(self) -> int:
        """As `Model.weight_bytes`."""
        return self._model.weight_bytes

    def resize(self, num_blocks: int) -> None:
        """As `ResizableModel.resize`. What was recorded is forgotten: it knows the old place."""
        self._recordings.clear()
        self._buffers = None
        self._model.resize(num_blocks)

    @property
    def recorded_sizes(self) -> list[int]:
        """The sizes of step that are replayed, ascending."""
        return sorted(self._recordings)

    @torch.inference_mode()
    def record_steps(self) -> None:
        """Record a step of each size, the largest first; to be called when the KV cache has its final place. A size for
        which memory is short, and a model that cannot be recorded, are computed as they come; the log tells of it."""
        self._recordings.clear()
        if not self._sizes:
            return
        if self._model.reads_back:
            _log.info("decode steps are not recorded: the model needs the host in the midst of each")
            return
        try:
            self._buffers = buffers = _Buffers(self._model, self._sizes[-1], self._max_model_len)
        except torch.OutOfMemoryError:
            _log.warning("decode steps are not recorded, and take longer: the device's memory is short")
            return
        for size in reversed(self._sizes):
            try:
                self._recordings[size] = self._recorder.record(lambda size=size: buffers.compute(size))  # type: ignore[misc]
            except torch.OutOfMemoryError:
                _log.warning("decode steps of %d sequences are not recorded: the device's memory is short", size)
            except RuntimeError as error:
                reason = (str(error).splitlines() or [type(error).__name__])[0]
                _log.warning("decode steps are not recorded, and take longer: %s", reason)
                self._recordings.clear()
                return

    def prepare(self, batch: Batch) -> _Replay | Prepared:
        """As `Model.prepare`."""
        num_rows = len(batch.token_ids)
        size = self._size_for(num_rows)
        if size is None or self._buffers is None or not _is_decode(batch):
            return self._model.prepare(batch)
        self._buffers.fill(batch, size)
        return _Replay(size, num_rows)

    @torch.inference_mode()
    def forward(self, prepared: _Replay | Prepared) -> Computed:
        """As `Model.forward`."""
        if isinstance(prepared, Prepared):
            return self._model.forward(prepared)
        assert self._buffers is not None, "there is a recording"
        self._recordings[prepared.size]()
        return self._buffers.computed(prepared.num_rows)

    def _size_for(self, num_rows: int) -> int | None:
        """The smallest recorded size that holds so many rows."""
        sizes = self.recorded_sizes
        place = bisect.bisect_left(sizes, num_rows)
        return sizes[place] if place < len(sizes) else None


def _is_decode(batch: Batch) -> bool:
    """Whether each sequence has one row, of which the logits are wanted and nothing else.

    A prompt's last chunk may be of one token, but is attended to as a prompt is, whoever shares the step.
    """
    num_rows = len(batch.token_ids)
    if not len(batch.chunks) == num_rows == len(batch.logit_rows) or len(batch.hidden_rows):
        return False
    return all(chunk.decodes for chunk in batch.chunks)


class _Buffers:
    """Owns the tensors that stay where they are: what a step reads, and the logits and flags that it writes.

    The inputs of a step of `size` rows lie one after another, so that one copy brings them: token ids, positions, then
    the rows whose tokens are awaited, and where those are.
    """

    def __init__(self, model: TorchModel, max_rows: int, max_model_len: int) -> None:
        self._model = model
        self._attention = attention = cast(StaticAttention, model.backend)
        self._inputs = torch.zeros(4 * max_rows, dtype=torch.int64, device=model.device)
        max_blocks = min(-(-max_model_len // BLOCK_SIZE), model.num_blocks)
        self._batch = attention.static_batch(max_rows, max_blocks)
        self._logits = torch.empty((max_rows, model.vocab_size), dtype=torch.float32, device=model.device)
        self._is_unsound = torch.zeros(max_rows, dtype=torch.bool, device=model.device)
        self._no_hidden = torch.empty((0, 0), dtype=torch.float32, device=model.device)

    def fill(self, batch: Batch, size: int) -> None:
        """Say what the next step of `size` rows computes; the rows of `batch` are its first."""
        num_rows = len(batch.token_ids)
        columns = np.zeros((2, size), dtype=np.int64)
        columns[0, :num_rows], columns[1, :num_rows] = batch.token_ids, batch.positions
        awaited = batch.awaited
        parts = [columns.reshape(-1)] if awaited is None else [columns.reshape(-1), awaited.rows, awaited.places]
        upload_into(self._inputs, np.concatenate(parts))
        if awaited is not None:
            self._take(awaited, size)
        self._attention.fill(self._batch, batch.chunks)

    def _take(self, awaited: Awaited, size: int) -> None:
        count = len(awaited.rows)
        rows, places = self._inputs[2 * size : 2 * (size + count)].view(2, count)
        self._inputs[:size].index_copy_(0, rows, awaited.chosen[places])

    def compute(self, size: int) -> None:
        """The work of a step of `size` rows."""
        token_ids, positions = self._inputs[: 2 * size].view(2, size)
        hidden = self._model.hidden(token_ids, positions, batch=self._attention.first_rows(self._batch, size))
        self._logits[:size].copy_(self._model.logits(hidden))
        self._is_unsound[:size].copy_(self._model.is_unsound(hidden))

    def computed(self, num_rows: int) -> Computed:
        """What the last step computed of its first `num_rows` rows."""
        return Computed(self._logits[:num_rows], self._no_hidden, self._is_unsound[:num_rows])
