"""The torch backend against plain dense attention, and against itself in other company."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from serving.engine.attention.backends import make_attention
from serving.engine.attention.base import AttentionBackend, AttentionChunk, LayerAttention
from serving.engine.kv_cache import BLOCK_SIZE, KVCache, KVCacheProblem, block_bytes, blocks_for
from serving.engine.models.config import ModelConfig, RopeConfig

pytestmark = pytest.mark.heavy

_CONFIG = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=100,
    hidden_size=64,
    intermediate_size=64,
    num_layers=1,
    num_heads=6,
    num_kv_heads=2,
    head_dim=16,
    rms_norm_eps=1e-5,
    rope=RopeConfig(),
    max_model_len=2048,
    tie_word_embeddings=True,
    qkv_bias=False,
    output_bias=False,
    mlp_bias=False,
    qk_norm=False,
    eos_token_ids=frozenset(),
)
_PLAIN = LayerAttention(16**-0.5)
_LENGTHS = (1, 2, 16, 17, 255, 256, 257, 300, 600)


@dataclasses.dataclass(frozen=True)
class _Context:
    """One sequence's rows, all of them, and where they live."""

    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    table: list[int]

    def __len__(self) -> int:
        return len(self.queries)

    def dense(self, how: LayerAttention | None = None) -> torch.Tensor:
        """Attention over the whole context at once, fp64: `[num_tokens, num_heads * head_dim]`."""
        how = how or _PLAIN
        shared = _CONFIG.num_heads // _CONFIG.num_kv_heads
        queries = self.queries.double().transpose(0, 1)
        keys, values = (
            part.double().repeat_interleave(shared, dim=1).transpose(0, 1) for part in (self.keys, self.values)
        )
        scores = queries @ keys.transpose(1, 2) * how.scale
        if how.softcap is not None:
            scores = how.softcap * (scores / how.softcap).tanh()
        positions = torch.arange(len(self))
        behind = positions[:, None] - positions
        scores.masked_fill_((behind < 0) | (behind >= (how.window or math.inf)), -math.inf)
        return (scores.softmax(-1) @ values).transpose(0, 1).flatten(1)


def _contexts(lengths: tuple[int, ...], dtype: torch.dtype, *, num_heads: int = 6) -> list[_Context]:
    generator = torch.Generator().manual_seed(3)
    sizes = [-(-length // BLOCK_SIZE) for length in lengths]
    blocks = torch.randperm(sum(sizes), generator=generator).split(sizes)

    def rows(length: int, heads: int) -> torch.Tensor:
        return torch.randn(length, heads, _CONFIG.head_dim, generator=generator).to(dtype)

    return [
        _Context(rows(length, num_heads), rows(length, 2), rows(length, 2), table.tolist())
        for length, table in zip(lengths, blocks, strict=True)
    ]


def _backend(contexts: list[_Context], dtype: torch.dtype, *, how: LayerAttention = _PLAIN) -> AttentionBackend:
    num_blocks = sum(len(context.table) for context in contexts)
    cache = KVCache(_CONFIG, num_blocks=num_blocks, dtype=dtype, device=torch.device("cpu"))
    for part in cache.layer(0):
        part.fill_(1e4)  # what other sequences left behind must not matter
    return make_attention("torch", cache, num_heads=contexts[0].queries.shape[1], layers=[how])


def _attend(backend: AttentionBackend, parts: list[tuple[_Context, int, int]]) -> list[torch.Tensor]:
    """One step with rows `[start, end)` of each context."""
    chunks, first_row = [], 0
    for context, start, end in parts:
        chunks.append(AttentionChunk(first_row, end - start, start, context.table))
        first_row += end - start
    queries, keys, values = (
        torch.cat([getattr(context, name)[start:end] for context, start, end in parts])
        for name in ("queries", "keys", "values")
    )
    output = backend.attend(0, queries, keys, values, batch=backend.prepare(chunks))
    return list(output.split([end - start for _, start, end in parts]))


def _in_chunks(backend: AttentionBackend, context: _Context, size: int) -> torch.Tensor:
    edges = range(0, len(context), size)
    return torch.cat([_attend(backend, [(context, edge, min(edge + size, len(context)))])[0] for edge in edges])


def test_equals_dense_attention_for_contexts_at_all_edges() -> None:
    contexts = _contexts(_LENGTHS, torch.float32)
    outputs = _attend(_backend(contexts, torch.float32), [(context, 0, len(context)) for context in contexts])
    for context, output in zip(contexts, outputs, strict=True):
        torch.testing.assert_close(output.double(), context.dense(), atol=2e-6, rtol=1e-5)


def test_a_mixed_step_equals_dense_attention() -> None:
    contexts = _contexts(_LENGTHS, torch.float32)
    backend = _backend(contexts, torch.float32)
    starts = [len(context) - 1 if index % 2 else len(context) // 3 for index, context in enumerate(contexts)]
    _attend(backend, [(context, 0, start) for context, start in zip(contexts, starts, strict=True) if start])
    outputs = _attend(
        backend, [(context, start, len(context)) for context, start in zip(contexts, starts, strict=True)]
    )
    for context, start, output in zip(contexts, starts, outputs, strict=True):
        torch.testing.assert_close(output.double(), context.dense()[start:], atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("num_heads", [2, 6])
@pytest.mark.parametrize("size", [1, 7, 16, 100, 256])
def test_bf16_chunks_are_bit_for_bit_the_whole(size: int, num_heads: int) -> None:
    (context,) = _contexts((600,), torch.bfloat16, num_heads=num_heads)
    whole = _in_chunks(_backend([context], torch.bfloat16), context, 600)
    assert torch.equal(_in_chunks(_backend([context], torch.bfloat16), context, size), whole)


@pytest.mark.parametrize("num_heads", [2, 6])
@pytest.mark.parametrize("count", [2, 5, len(_LENGTHS)])
def test_bf16_decode_is_bit_for_bit_the_same_in_company(count: int, num_heads: int) -> None:
    contexts = _contexts(_LENGTHS, torch.bfloat16, num_heads=num_heads)
    backend = _backend(contexts, torch.bfloat16)
    _attend(backend, [(context, 0, len(context)) for context in contexts])
    last = [(context, len(context) - 1, len(context)) for context in contexts]
    alone = [_attend(backend, [part])[0] for part in last]
    for chosen in (range(count), range(len(contexts) - count, len(contexts))):
        together = _attend(backend, [last[index] for index in chosen])
        assert all(torch.equal(output, alone[index]) for index, output in zip(chosen, together, strict=True))


_WINDOWS = (1, 5, 16, 100, 256, 300)


@pytest.mark.parametrize("softcap", [None, 0.5, 30.0])
@pytest.mark.parametrize("window", [None, *_WINDOWS])
def test_windows_and_softcaps_equal_dense_attention(window: int | None, softcap: float | None) -> None:
    how = LayerAttention(0.4, window, softcap)
    contexts = _contexts(_LENGTHS, torch.float32)
    backend = _backend(contexts, torch.float32, how=how)
    starts = [len(context) - 1 if index % 2 else len(context) // 3 for index, context in enumerate(contexts)]
    begun = _attend(backend, [(context, 0, start) for context, start in zip(contexts, starts, strict=True) if start])
    ended = _attend(backend, [(context, start, len(context)) for context, start in zip(contexts, starts, strict=True)])
    for context, start, output in zip(contexts, starts, ended, strict=True):
        found = torch.cat([begun.pop(0), output]) if start else output
        torch.testing.assert_close(found.double(), context.dense(how), atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("window", _WINDOWS)
def test_a_windowed_row_is_bit_for_bit_the_same_in_any_chunk_and_company(window: int) -> None:
    how = LayerAttention(0.25, window, 20.0)
    contexts = _contexts(_LENGTHS, torch.bfloat16)
    backend = _backend(contexts, torch.bfloat16, how=how)
    whole = _attend(backend, [(context, 0, len(context)) for context in contexts])
    for size in (7, 100, 256):
        assert torch.equal(_in_chunks(_backend(contexts, torch.bfloat16, how=how), contexts[-1], size), whole[-1])
    together = _attend(backend, [(context, len(context) - 1, len(context)) for context in contexts])
    assert all(torch.equal(output, rows[-1:]) for output, rows in zip(together, whole, strict=True))


def test_layers_of_one_model_may_differ() -> None:
    """What a step prepares serves layers with and without windows."""
    (context,) = _contexts((300,), torch.float32)
    hows = [_PLAIN, LayerAttention(0.5, 40), LayerAttention(0.25, softcap=2.0), LayerAttention(0.1, 17)]
    config = dataclasses.replace(_CONFIG, num_layers=len(hows))
    cache = KVCache(config, num_blocks=len(context.table), dtype=torch.float32, device=torch.device("cpu"))
    backend = make_attention("torch", cache, num_heads=6, layers=hows)
    batch = backend.prepare([AttentionChunk(0, 300, 0, context.table)])
    for layer, how in enumerate(hows):
        output = backend.attend(layer, context.queries, context.keys, context.values, batch=batch)
        torch.testing.assert_close(output.double(), context.dense(how), atol=2e-6, rtol=1e-5)


def test_blocks_before_every_window_are_not_read() -> None:
    """They may be given to others: a sequence with windows alone could hand them back."""
    how = LayerAttention(0.25, 100)
    (context,) = _contexts((600,), torch.float32)
    backend = _backend([context], torch.float32, how=how)
    _attend(backend, [(context, 0, 599)])
    elsewhere = dataclasses.replace(context, table=[-1] * 16 + context.table[16:])
    (output,) = _attend(backend, [(elsewhere, 599, 600)])
    torch.testing.assert_close(output.double(), context.dense(how)[599:], atol=2e-6, rtol=1e-5)


def test_stored_keys_and_values_are_attended_to_without_being_given_again() -> None:
    (context,) = _contexts((40,), torch.float32)
    backend = _backend([context], torch.float32)
    (expected,) = _attend(backend, [(context, 0, 40)])
    batch = backend.prepare([AttentionChunk(0, 40, 0, context.table)])
    assert torch.equal(backend.attend_stored(0, context.queries, batch=batch), expected)


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"scale": 0.0}, "scale is 0.0; it must be positive and finite"),
        ({"scale": 1.0, "softcap": math.inf}, "softcap is inf; it must be positive and finite"),
        ({"scale": 1.0, "window": 0}, "window is 0; it must be at least 1"),
    ],
)
def test_a_layer_that_makes_no_sense_is_refused(values: dict[str, float], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        LayerAttention(**values)  # type: ignore[arg-type]


def test_another_sequence_that_is_not_finite_changes_nothing() -> None:
    """Its blocks pad shorter tables and are reused later: nothing of it may leak into a masked product."""
    good, bad = _contexts((40, 20), torch.float32)
    expected = _attend(_backend([good, bad], torch.float32), [(good, 0, 40)])[0]
    broken = dataclasses.replace(bad, keys=bad.keys * math.nan, values=bad.values * math.inf)
    backend = _backend([good, bad], torch.float32)
    _attend(backend, [(broken, 0, 20)])
    assert torch.equal(_attend(backend, [(good, 0, 40)])[0], expected)
    reused = dataclasses.replace(good, table=[*bad.table, *good.table[: len(good.table) - len(bad.table)]])
    assert torch.equal(_attend(backend, [(reused, 0, 40)])[0], expected)


def test_an_unknown_backend_is_refused_by_name() -> None:
    cache = KVCache(_CONFIG, num_blocks=4, dtype=torch.float32, device=torch.device("cpu"))
    with pytest.raises(ValueError, match="'warp' is not known; there are: torch"):
        make_attention("warp", cache, num_heads=6, layers=[_PLAIN])


def test_the_cache_takes_what_its_memory_allows() -> None:
    size = block_bytes(_CONFIG, torch.bfloat16)
    assert size == 2 * 2 * 16 * 16 * 2
    assert blocks_for(10 * size + size - 1, size) == 10


def test_a_cache_too_small_is_refused_with_what_would_do() -> None:
    size = block_bytes(_CONFIG, torch.bfloat16)
    with pytest.raises(KVCacheProblem, match=f"at least 4 blocks \\({4 * size} bytes\\)"):
        blocks_for(4 * size - 1, size)


def test_a_cache_beyond_the_machine_is_refused_in_one_line() -> None:
    with pytest.raises(KVCacheProblem, match="no memory for a KV cache of") as caught:
        KVCache(_CONFIG, num_blocks=1 << 44, dtype=torch.bfloat16, device=torch.device("cpu"))
    assert "\n" not in str(caught.value)
