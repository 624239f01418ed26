"""A model computed by the C++ kernels: bf16 weights and keys, sums in fp32, a step in one call."""

from __future__ import annotations

import dataclasses
import itertools
import math
import weakref

import numpy as np
import numpy.typing as npt
import torch

from serving.engine.kernels import library
from serving.engine.kernels.library import Library
from serving.engine.kernels.matrices import KernelMatrix
from serving.engine.kernels.memory import LargePages, zeros_in_large_pages
from serving.engine.kernels.packing import COLUMNS, INNER_MULTIPLE, padded
from serving.engine.kernels.quantised import WeightFormat, vocabulary_format
from serving.engine.kv_cache import BLOCK_SIZE, KVCacheProblem
from serving.engine.models.config import ModelConfig
from serving.engine.models.kernel_weights import kernel_weights, panels_in_turn, rows_in_turn
from serving.engine.models.matrices import all_in_memory
from serving.engine.models.model import Batch, Computed
from serving.engine.models.rope import rotary_rows
from serving.engine.models.weights import DecoderWeights, DenseWeights, LayerWeights, Matrix, PlainMatrix


@dataclasses.dataclass(frozen=True, slots=True)
class _Prepared:
    """The step's arrays; they must outlive the call that reads them."""

    token_ids: npt.NDArray[np.int32]
    chunk_of: npt.NDArray[np.int32]
    chunks: npt.NDArray[np.int32]
    blocks: npt.NDArray[np.int32]
    logit_rows: npt.NDArray[np.int32]
    hidden_rows: npt.NDArray[np.int32]


class CpuModel:
    """Owns packed weights, KV cache and workspace, and the C structures that point to them; on the engine's thread.

    Activations are bf16 where they enter a product, and fp32 otherwise. A row's numbers do not depend on company: see
    `kernels/tiles.h`.
    """

    name = "cpu"

    def __init__(
        self,
        config: ModelConfig,
        weights: DecoderWeights,
        *,
        kernels: Library,
        num_blocks: int,
        num_threads: int,
        weight_format: WeightFormat = "bfloat16",
    ) -> None:
        """Pack `weights`, and start `num_threads` - 1 threads that compute with the caller's.

        Raises `KVCacheProblem` where memory for the cache is short.
        """
        self._config = config
        self._kernels = kernels
        self._crew = kernels.start_crew(num_threads=num_threads)
        weakref.finalize(self, self._crew.end)  # before the memory goes that a late thread may still look at
        self._kept: list[torch.Tensor] = []
        self._matrices: list[KernelMatrix] = []
        self.num_made_whole = 0
        """How many matrices are quantised in the folder in ways that the kernels do not have, and take bfloat16."""
        self._capacity = 0
        self._memory = LargePages()
        self._workspace = torch.empty(0, dtype=torch.uint8)
        self._logits = torch.empty((0, config.vocab_size), dtype=torch.float32)
        layers = [self._layer(index, layer, weight_format) for index, layer in enumerate(weights.layers)]
        self._layers = (library.Layer * config.num_layers)(*layers)
        cosines, sines = rotary_rows(config.rope, head_dim=config.head_dim, max_model_len=config.max_model_len)
        self.num_blocks = num_blocks
        """As `Model.num_blocks`."""
        self._model = library.Model(
            num_layers=config.num_layers,
            hidden_size=config.hidden_size,
            num_heads=config.num_heads,
            num_kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            rotary_dim=config.rope.rotary_dim(config.head_dim),
            vocab_size=config.vocab_size,
            num_blocks=num_blocks,
            norm_eps=config.rms_norm_eps,
            layers=self._layers,
            embedding=self._keep(weights.embedding),
            final_norm=self._vector(weights.final_norm),
            vocabulary=self._matrix(weights.vocabulary, weight_format=vocabulary_format(weight_format)),
            cosines=self._keep(cosines),
            sines=self._keep(sines),
            cache=self._keep(_cache(config, num_blocks)),
        )

    @property
    def weight_bytes(self) -> int:
        """As `Model.weight_bytes`."""
        return sum(matrix.num_bytes for matrix in self._matrices)

    def prepare(self, batch: Batch) -> _Prepared:
        """As `Model.prepare`."""
        tables = [chunk.block_table for chunk in batch.chunks]
        first_blocks = itertools.accumulate(map(len, tables[:-1]), initial=0)
        return _Prepared(
            token_ids=batch.known_token_ids().astype(np.int32),
            chunk_of=np.repeat(np.arange(len(tables), dtype=np.int32), [chunk.num_tokens for chunk in batch.chunks]),
            chunks=np.asarray(
                [
                    (chunk.first_row, chunk.num_tokens, chunk.start, first_block, batch.positions[chunk.first_row])
                    for chunk, first_block in zip(batch.chunks, first_blocks, strict=True)
                ],
                dtype=np.int32,
            ),
            blocks=np.fromiter(itertools.chain.from_iterable(tables), dtype=np.int32),
            logit_rows=batch.logit_rows.astype(np.int32),
            hidden_rows=batch.hidden_rows.astype(np.int32),
        )

    def forward(self, prepared: _Prepared) -> Computed:
        """As `Model.forward`."""
        num_rows, num_logit_rows = len(prepared.token_ids), len(prepared.logit_rows)
        num_hidden_rows = len(prepared.hidden_rows)
        self._make_room(num_rows)
        if num_logit_rows > len(self._logits):
            # Kept from step to step: the kernel gives out fresh memory page by page, which takes as long as to compute.
            self._logits = zeros_in_large_pages((2 * num_logit_rows, self._config.vocab_size), torch.float32)
        logits = self._logits[:num_logit_rows]
        hidden = torch.empty((num_hidden_rows, self._config.hidden_size), dtype=torch.float32)
        unsound = np.zeros(num_rows, dtype=np.uint8)
        step = library.Step(
            num_rows=num_rows,
            num_chunks=len(prepared.chunks),
            num_logit_rows=num_logit_rows,
            num_hidden_rows=num_hidden_rows,
            token_ids=prepared.token_ids.ctypes.data,
            chunk_of=prepared.chunk_of.ctypes.data,
            chunks=prepared.chunks.ctypes.data,
            blocks=prepared.blocks.ctypes.data,
            logit_rows=prepared.logit_rows.ctypes.data,
            logits=logits.data_ptr(),
            hidden_rows=prepared.hidden_rows.ctypes.data,
            hidden=hidden.data_ptr(),
            is_unsound=unsound.ctypes.data,
            workspace=self._workspace.data_ptr(),
        )
        self._kernels.forward(self._model, step, capacity=self._capacity, crew=self._crew)
        return Computed(
            logits,
            hidden,
            torch.from_numpy(unsound),
            linear_seconds=step.seconds[0],
            attention_seconds=step.seconds[1],
        )

    def _make_room(self, num_rows: int) -> None:
        """A workspace for `num_rows` rows, zeroed: the kernels rely on its padding."""
        if num_rows <= self._capacity:
            return
        capacity = max(64, 1 << (num_rows - 1).bit_length())
        num_bytes = self._kernels.workspace_bytes(self._model, num_rows=capacity)
        # Both together: a step after one that found no memory must not take the old workspace for the new.
        self._workspace, self._capacity = zeros_in_large_pages([num_bytes], torch.uint8), capacity

    def _layer(self, index: int, layer: LayerWeights, weight_format: WeightFormat) -> library.Layer:
        assert isinstance(layer.feed_forward, DenseWeights), "what the kernels cannot compute is refused before"
        return library.Layer(
            input_norm=self._vector(layer.input_norm),
            mlp_norm=self._vector(layer.mlp_norm),
            query_norm=None if layer.query_norm is None else self._vector(layer.query_norm),
            key_norm=None if layer.key_norm is None else self._vector(layer.key_norm),
            qkv=self._matrix(layer.qkv, weight_format=weight_format),
            output=self._matrix(layer.output, weight_format=weight_format),
            gate_up=self._matrix(layer.feed_forward.gate_up, weight_format=weight_format, in_turn=True),
            down=self._matrix(layer.feed_forward.down, weight_format=weight_format),
            window=self._config.layer(index).window or self._config.max_model_len,
        )

    def _matrix(self, matrix: Matrix, *, weight_format: WeightFormat, in_turn: bool = False) -> library.Matrix:
        """`matrix` as the kernels read it; `in_turn`: with its outputs so that panels of gate and up take turns."""
        matrix = all_in_memory(matrix)
        weight, bias = kernel_weights(matrix, weight_format), matrix.bias
        if weight_format == "bfloat16" and isinstance(weight, torch.Tensor) and not isinstance(matrix, PlainMatrix):
            self.num_made_whole += 1
        if in_turn:
            weight, bias = panels_in_turn(weight), None if bias is None else rows_in_turn(bias)
        packed = KernelMatrix(weight, bias, weight_format=weight_format, memory=self._memory)
        self._matrices.append(packed)
        return packed.structure

    def _vector(self, values: torch.Tensor) -> int:
        return self._keep(padded(values.float(), 0, INNER_MULTIPLE))

    def _keep(self, tensor: torch.Tensor) -> int:
        """The tensor's address, which stays good as long as this object lives."""
        self._kept.append(tensor.contiguous())
        return self._kept[-1].data_ptr()


def what_is_missing(config: ModelConfig) -> str | None:
    """What the model has that the kernels do not compute; None where they compute all of it."""
    features = (
        (config.experts is not None, "mixtures of experts"),
        (config.activation != "silu", f"the activation {config.activation}"),
        (config.norm_adds_one or config.norms_outputs, "norms of outputs"),
        (config.attention_softcap is not None or config.logit_softcap is not None, "softcaps"),
        (config.attention_scale is not None, "a scale of attention scores of its own"),
        (config.local_rope is not None, "layers that rotate otherwise than the rest"),
    )
    missing = [name for is_there, name in features if is_there]
    return ", ".join(missing) or None


def block_bytes(config: ModelConfig) -> int:
    """Memory of one block: bf16 keys and values of `BLOCK_SIZE` positions in every layer, heads padded to panels."""
    return 2 * math.prod(_cache_shape(config, 1))


def _cache_shape(config: ModelConfig, num_blocks: int) -> tuple[int, ...]:
    head = math.ceil(config.head_dim / COLUMNS) * COLUMNS
    return config.num_layers, num_blocks, config.num_kv_heads, 2, head * BLOCK_SIZE


def _cache(config: ModelConfig, num_blocks: int) -> torch.Tensor:
    """Zeroed keys and values of all layers `[num_layers, num_blocks, num_kv_heads, 2, padded head_dim * 16]`."""
    try:
        return zeros_in_large_pages(_cache_shape(config, num_blocks), torch.bfloat16)
    except MemoryError:
        needed = num_blocks * block_bytes(config)
        raise KVCacheProblem(f"no memory for a KV cache of {needed} bytes") from None
