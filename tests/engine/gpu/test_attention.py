"""Triton's attention against plain PyTorch's, and what it promises about a row's company."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from serving.engine.attention.backends import make_attention
from serving.engine.attention.base import AttentionChunk, LayerAttention
from serving.engine.attention.triton_backend import TritonAttention
from serving.engine.kernels.gpu.store import store
from serving.engine.kv_cache import BLOCK_SIZE
from tests.engine.gpu.attending import Heads, Scene, make_cache, make_scene

pytestmark = pytest.mark.heavy

_HEADS = (
    Heads(4, 2, 16),
    Heads(6, 2, 20),
    Heads(9, 3, 64),
    Heads(32, 8, 128),
    Heads(7, 1, 80),
    Heads(8, 8, 96),
    Heads(16, 2, 256),
)
_SMALL = Heads(6, 2, 20)
_PLAIN = LayerAttention(0.25)
_TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3}


def _assert_agrees(scene: Scene, parts: list[tuple[int, int, int]], *layers: LayerAttention) -> None:
    expected, found = scene.backend("torch", *layers), scene.backend("triton", *layers)
    for layer in range(len(layers)):
        tolerance = _TOLERANCE[scene.cache.dtype]
        torch.testing.assert_close(
            scene.attend(found, parts, layer=layer),
            scene.attend(expected, parts, layer=layer),
            atol=tolerance,
            rtol=tolerance,
        )


@pytest.mark.parametrize("heads", _HEADS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_mixed_step_is_that_of_the_reference(heads: Heads, dtype: torch.dtype) -> None:
    """Single rows and chunks, one of them longer than a tile of queries, in one step."""
    scene = make_scene(heads, (1, 40, 65, 150, 300), dtype)
    how = LayerAttention(heads.head_dim**-0.5)
    num_rows = 12 if heads.num_kv_heads == 8 else 50
    _assert_agrees(
        scene, [(0, 0, 1), (1, 3, 3 + num_rows % 37), (2, 64, 65), (3, 150 - num_rows, 150), (4, 299, 300)], how
    )


@pytest.mark.parametrize("length", [1, 15, 16, 17, 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 512, 513, 1025, 4000])
def test_a_row_that_decodes_agrees_at_every_edge(length: int) -> None:
    """Edges of blocks, of tiles, of parts, and contexts split into as many parts as there may be."""
    scene = make_scene(_SMALL, (length,), torch.float16)
    _assert_agrees(scene, [(0, length - 1, length)], _PLAIN)


@pytest.mark.parametrize(("start", "end"), [(0, 1), (0, 16), (0, 70), (15, 17), (63, 66), (64, 128), (1000, 1050)])
def test_a_prompts_chunk_agrees_at_every_edge(start: int, end: int) -> None:
    scene = make_scene(_SMALL, (end,), torch.float16)
    chunk = [(0, start, end)]
    expected = scene.attend(scene.backend("torch", _PLAIN), chunk)
    found = scene.attend(scene.backend("triton", _PLAIN), chunk, is_prefill=True)
    torch.testing.assert_close(found, expected, atol=4e-3, rtol=4e-3)


@pytest.mark.parametrize("softcap", [None, 0.5, 30.0])
@pytest.mark.parametrize("window", [1, 5, 16, 100, 256, 300])
def test_windows_and_softcaps_are_those_of_the_reference(window: int, softcap: float | None) -> None:
    scene = make_scene(_SMALL, (9, 90, 420, 700), torch.float32)
    how = LayerAttention(0.4, window, softcap)
    _assert_agrees(scene, [(0, 8, 9), (1, 30, 90), (2, 330, 420), (3, 699, 700)], how)


def test_layers_of_one_model_may_differ() -> None:
    layers = (_PLAIN, LayerAttention(0.5, 40), LayerAttention(0.3, softcap=2.0), LayerAttention(0.1, 300, 9.0))
    scene = make_scene(_SMALL, (33, 900), torch.float32, num_layers=len(layers))
    _assert_agrees(scene, [(0, 20, 33), (1, 899, 900)], *layers)


def test_what_lies_before_a_window_is_not_read() -> None:
    scene = make_scene(_SMALL, (900,), torch.float32)
    how = LayerAttention(0.25, 100)
    elsewhere = dataclasses.replace(scene, tables=([1 << 30] * 48 + scene.tables[0][48:],))
    for parts, is_prefill in (([(0, 899, 900)], False), ([(0, 890, 900)], True)):
        expected = scene.attend(scene.backend("triton", how), parts, is_prefill=is_prefill)
        assert torch.equal(elsewhere.attend(scene.backend("triton", how), parts, is_prefill=is_prefill), expected)


def test_keys_and_values_are_stored_where_the_reference_stores_them() -> None:
    """What is not finite as finite numbers, and nothing for a row that is padding."""
    for dtype in (torch.float16, torch.float32):
        heads = Heads(6, 3, 20)
        ours, theirs = (make_cache(heads, num_blocks=4, dtype=dtype) for _ in range(2))
        generator = torch.Generator().manual_seed(1)
        fused = torch.randn(6, 12, 20, generator=generator).to(dtype)
        keys, values = fused[:, 6:9], fused[:, 9:]
        keys[0, 0, 0], keys[1, 1, 19], values[2, 2, 3], values[5, 0, 1] = math.nan, math.inf, -math.inf, math.nan
        slots = torch.tensor([3, 17, -1, 63, 0, 31], dtype=torch.int32)
        store(keys, values, slots, cached=ours.layer(0))
        kept = slots >= 0
        theirs.write(0, slots[kept].long(), keys[kept], values[kept])
        for one, other in zip(ours.layer(0), theirs.layer(0), strict=True):
            assert torch.equal(one, other)


def test_attending_stores_first() -> None:
    scene = make_scene(_SMALL, (40, 70), torch.float16)
    parts = [(0, 0, 40), (1, 69, 70)]
    generator = torch.Generator().manual_seed(2)
    keys, values = (torch.randn(41, 2, 20, generator=generator).half() for _ in range(2))
    keys[7, 1, 3] = math.nan
    found = {}
    for name in ("torch", "triton"):
        fresh = make_scene(_SMALL, (40, 70), torch.float16)
        backend = fresh.backend(name, _PLAIN)
        found[name] = backend.attend(0, scene.rows(parts), keys, values, batch=backend.prepare(fresh.chunks(parts)))
    torch.testing.assert_close(found["triton"], found["torch"], atol=4e-3, rtol=4e-3)


@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_a_query_that_is_not_finite_spoils_no_other_row() -> None:
    scene = make_scene(_SMALL, (300,), torch.float32)
    backend = scene.backend("triton", _PLAIN)
    sound = scene.attend(backend, [(0, 280, 300)])
    scene.queries[0][285] = math.nan
    found = scene.attend(backend, [(0, 280, 300)])
    assert found[5].isnan().all()
    kept = [row for row in range(20) if row != 5]
    assert torch.equal(found[kept], sound[kept])


@pytest.mark.parametrize("how", [_PLAIN, LayerAttention(0.25, 100, 20.0)], ids=["plain", "windowed"])
def test_a_row_that_decodes_is_bit_for_bit_the_same_in_any_company(how: LayerAttention) -> None:
    """More rows than fill the processors share parts of contexts in another way; drafted rows are as if alone."""
    lengths = (1, 40, 300, 700, 1100)
    scene = make_scene(_SMALL, lengths, torch.float16)
    backend = scene.backend("triton", how)
    parts = [(index, length - 1, length) for index, length in enumerate(lengths)]
    alone = [scene.attend(backend, [part]) for part in parts]
    together = scene.attend(backend, parts * 3)
    assert torch.equal(together, torch.cat(alone * 3))
    drafted = scene.attend(backend, [(3, 697, 700), (4, 1099, 1100)], is_prefill=False)
    assert torch.equal(drafted[2:], torch.cat(alone[3:]))
    assert torch.equal(drafted[:1], scene.attend(backend, [(3, 697, 698)]))


@pytest.mark.parametrize("how", [_PLAIN, LayerAttention(0.25, 100, 20.0)], ids=["plain", "windowed"])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_a_prompts_rows_are_bit_for_bit_the_same_however_it_is_cut(how: LayerAttention, size: int) -> None:
    end = 128 + 3 * size
    scene = make_scene(_SMALL, (end, 30), torch.float16)
    backend = scene.backend("triton", how)
    whole = scene.attend(backend, [(0, 0, end)])
    edges = range(128, end, size)
    cut = [scene.attend(backend, [(1, 0, 30), (0, edge, edge + size)], is_prefill=True)[30:] for edge in edges]
    assert torch.equal(torch.cat(cut), whole[128:])


def test_a_static_batch_is_refilled_in_place() -> None:
    """What a graph would replay: the same tensors, whose contents alone change."""
    scene = make_scene(_SMALL, (5, 300, 64, 900), torch.float16)
    backend = TritonAttention(scene.cache, num_heads=6, layers=[_PLAIN])
    static = backend.static_batch(8, 64)
    batch = backend.first_rows(static, 4)
    places = [tensor.data_ptr() for tensor in (batch.slots, batch.decoding.lengths, batch.blocks)]
    generator = torch.Generator().manual_seed(3)
    for parts in ([(3, 899, 900), (1, 299, 300), (0, 4, 5)], [(2, 63, 64)], [(1, 250, 251), (3, 600, 601)]):
        backend.fill(static, scene.chunks(parts))
        queries = torch.full((4, 6, 20), math.nan, dtype=torch.float16)
        queries[: len(parts)] = scene.rows(parts)
        keys, values = (torch.randn(4, 2, 20, generator=generator).half() for _ in range(2))
        untouched = [part.clone() for part in scene.cache.layer(0)]
        found = backend.attend(0, queries, keys, values, batch=batch)
        eager = scene.backend("triton", _PLAIN)
        assert torch.equal(found[: len(parts)], scene.attend(eager, parts))
        assert torch.equal(found[len(parts) :], torch.zeros_like(found[len(parts) :]))
        slots = [
            scene.tables[index][start // BLOCK_SIZE] * BLOCK_SIZE + start % BLOCK_SIZE for index, start, _ in parts
        ]
        assert batch.slots.tolist() == slots + [-1] * (4 - len(parts))
        for now, before in zip(scene.cache.layer(0), untouched, strict=True):
            changed = (now != before).view(2, -1, 20).any(-1).any(0).nonzero().squeeze(-1)
            assert changed.tolist() == sorted(slots)
    assert places == [tensor.data_ptr() for tensor in (batch.slots, batch.decoding.lengths, batch.blocks)]


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ([(0, 63, 64), (1, 63, 64), (2, 63, 64)], "cannot hold 3 rows of up to 64"),
        ([(0, 64, 65)], "cannot hold 1 rows of up to 65"),
    ],
)
def test_a_static_batch_has_room_for_so_much(parts: list[tuple[int, int, int]], problem: str) -> None:
    scene = make_scene(_SMALL, (65, 64, 64), torch.float16)
    backend = TritonAttention(scene.cache, num_heads=6, layers=[_PLAIN])
    with pytest.raises(ValueError, match=f"at most 2 rows of 64 positions {problem}"):
        backend.fill(backend.static_batch(2, 4), scene.chunks(parts))


@pytest.mark.parametrize(
    ("max_blocks", "how", "lengths"),
    [(144, _PLAIN, (2048, 1030)), (24, LayerAttention(0.25, 256), (300, 384))],
    ids=["plain", "windowed"],
)
def test_a_static_batch_holds_contexts_that_have_more_parts_than_its_longest(
    max_blocks: int, how: LayerAttention, lengths: tuple[int, ...]
) -> None:
    """18 tiles are split into 6 parts of 3, but 16 into 8 of 2; and of two tiles that begin with the window it sees
    both, but three of others."""
    scene = make_scene(_SMALL, lengths, torch.float16)
    backend = TritonAttention(scene.cache, num_heads=6, layers=[how])
    static = backend.static_batch(len(lengths), max_blocks)
    parts = [(index, length - 1, length) for index, length in enumerate(lengths)]
    eager = backend.prepare(scene.chunks(parts))
    (split,), (needed,) = static.batch.splitting.values(), eager.splitting.values()
    assert split.most_parts >= needed.most_parts
    assert static.batch.partials.sums.shape[2] >= needed.most_parts
    backend.fill(static, scene.chunks(parts))
    found = backend.attend_stored(0, scene.rows(parts), batch=backend.first_rows(static, len(lengths)))
    assert torch.equal(found, backend.attend_stored(0, scene.rows(parts), batch=eager))


def test_blocks_for_tokens_to_come_are_not_read() -> None:
    """A sequence may hold more than its rows need."""
    scene = make_scene(_SMALL, (40,), torch.float16)
    backend = TritonAttention(scene.cache, num_heads=6, layers=[_PLAIN])
    ahead = dataclasses.replace(scene, tables=([*scene.tables[0], 1 << 30, 1 << 30],))
    static = backend.static_batch(1, 3)
    backend.fill(static, ahead.chunks([(0, 39, 40)]))
    expected = scene.attend(backend, [(0, 39, 40)])
    assert torch.equal(backend.attend_stored(0, scene.rows([(0, 39, 40)]), batch=static.batch), expected)


def test_a_device_without_kernels_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import knobs

    monkeypatch.setattr(knobs.runtime, "interpret", False)
    cache = make_cache(_SMALL, num_blocks=4, dtype=torch.float32)
    with pytest.raises(ValueError, match="triton needs a GPU; the model is on device cpu"):
        make_attention("triton", cache, num_heads=6, layers=[_PLAIN])


def test_an_engine_without_triton_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import builtins

    found = builtins.__import__

    def without(name: str, *arguments: object) -> object:
        if name == "serving.engine.attention.triton_backend":
            raise ModuleNotFoundError("No module named 'triton'", name="triton")
        return found(name, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    cache = make_cache(_SMALL, num_blocks=4, dtype=torch.float32)
    with pytest.raises(ValueError, match="needs the package triton, which is not installed"):
        make_attention("triton", cache, num_heads=6, layers=[_PLAIN])


def test_tokens_of_a_prompt_and_those_that_decode_are_told_apart() -> None:
    assert AttentionChunk(0, 1, 5, [0]).decodes
    assert not AttentionChunk(0, 2, 5, [0]).decodes
    assert AttentionChunk(0, 2, 5, [0], is_prefill=False).decodes
    assert not AttentionChunk(0, 1, 5, [0], is_prefill=True).decodes
