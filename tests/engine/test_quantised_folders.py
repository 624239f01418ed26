"""Quantised weights of every layout mean what their published description says, and what is no such thing is refused
before it is read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from serving.engine.models.config import read_config
from serving.engine.models.loader import check_weights, load_weights, open_weights
from serving.engine.models.matrices import DeferredMatrix, JoinedMatrix
from serving.engine.models.packed import PackedMatrix
from serving.engine.models.problem import ModelFolderProblem
from serving.engine.models.weights import DecoderWeights, DenseWeights, Matrix, PlainMatrix
from tests.engine.packing import Tensors, pack_gptq
from tests.engine.quantised_folders import CONFIG, LAYOUTS, quantise_folder, save_random_model

pytestmark = pytest.mark.heavy

_CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def plain_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights, some of which lie well off zero."""
    return save_random_model(tmp_path_factory.mktemp("plain"))


@pytest.fixture
def quantised(plain_folder: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Makes the folder in the named layout, beside it the one with the same weights in full."""
    return lambda name: quantise_folder(plain_folder, tmp_path / name, LAYOUTS[name])


def _load(folder: Path, dtype: torch.dtype = torch.float32) -> DecoderWeights:
    return load_weights(folder, read_config(folder), dtype=dtype, device=_CPU)


def _matrices(weights: DecoderWeights) -> dict[str, Matrix]:
    found = {"vocabulary": weights.vocabulary}
    for index, layer in enumerate(weights.layers):
        assert isinstance(layer.feed_forward, DenseWeights)
        found |= {
            f"{index} qkv": layer.qkv,
            f"{index} output": layer.output,
            f"{index} gate_up": layer.feed_forward.gate_up,
            f"{index} down": layer.feed_forward.down,
        }
    return found


@pytest.mark.parametrize("name", LAYOUTS)
def test_weights_are_those_of_the_published_formula(name: str, quantised: Callable[[str], Path]) -> None:
    folder = quantised(name)
    check_weights(folder, read_config(folder))
    found, expected = _matrices(_load(folder)), _matrices(_load(folder.with_name(f"{folder.name}-plain")))
    rows = torch.randn(5, 96, generator=torch.Generator().manual_seed(1))
    for place, matrix in expected.items():
        weight = matrix.plain()
        torch.testing.assert_close(
            found[place].plain(), weight, rtol=1e-6, atol=1e-8, msg=lambda text, at=place: at + text
        )
        torch.testing.assert_close(
            found[place].times(rows[:, : weight.shape[1]]), rows[:, : weight.shape[1]] @ weight.T
        )


@pytest.mark.parametrize("name", LAYOUTS)
def test_weights_are_kept_in_as_few_bits_as_the_folder_has(name: str, quantised: Callable[[str], Path]) -> None:
    folder = quantised(name)
    config = read_config(folder)
    assert config.quantisation is not None
    assert config.quantisation.text == LAYOUTS[name].text
    weights = _load(folder, torch.bfloat16)
    assert isinstance(weights.vocabulary, PlainMatrix)
    quanta = [
        part for matrix in _matrices(weights).values() for part in _parts(matrix) if isinstance(part, PackedMatrix)
    ]
    assert len(quanta) >= 4
    for part in quanta:
        packed = part.weights
        assert packed.kind in config.quantisation.kinds or name == "gptq-mixed"
        assert packed.quanta.nbytes == packed.num_outputs * packed.num_inputs * (0.5 if packed.kind == "int4" else 1)


def _parts(matrix: Matrix) -> tuple[Matrix, ...]:
    return matrix.parts if isinstance(matrix, JoinedMatrix) else (matrix,)


def test_modules_that_a_recipe_leaves_out_are_plain(quantised: Callable[[str], Path]) -> None:
    weights = _load(quantised("awq-some-plain"))
    first, second = weights.layers
    assert [type(part) for part in _parts(first.qkv)] == [PackedMatrix, PlainMatrix, PackedMatrix]
    assert isinstance(first.feed_forward, DenseWeights)
    assert isinstance(second.feed_forward, DenseWeights)
    assert isinstance(first.feed_forward.gate_up, PackedMatrix)
    assert isinstance(second.feed_forward.gate_up, PlainMatrix)


def test_inputs_that_were_quantised_in_another_order_are_gathered(quantised: Callable[[str], Path]) -> None:
    """Queries, keys and values are one product where they agree on it, as GPTQ's do, and three where they do not."""
    layer = _load(quantised("gptq-by-size")).layers[0]
    assert isinstance(layer.qkv, PackedMatrix)
    assert layer.qkv.order is not None
    assert sorted(layer.qkv.order.tolist()) == list(range(64))
    assert layer.qkv.order.tolist() != list(range(64))
    layer = _load(quantised("compressed-int4-by-size")).layers[0]
    assert isinstance(layer.qkv, JoinedMatrix)


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize("name", ["awq", "fp8-static", "compressed-int8"])
def test_embedding_that_is_quantised_too_is_what_it_stands_for(
    plain_folder: Path, quantised: Callable[[str], Path], name: str, is_tied: bool
) -> None:
    folder = quantised(name)
    place = "model.embed_tokens"
    stored, meant = LAYOUTS[name].pack(load_file(plain_folder / "model.safetensors")[f"{place}.weight"])

    def apply(tensors: Tensors) -> None:
        del tensors[f"{place}.weight"]
        tensors.update({f"{place}.{part}": value.contiguous() for part, value in stored.items()})

    _rewrite(folder, apply)
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": is_tied}
    (folder / "config.json").write_text(json.dumps(config))
    check_weights(folder, read_config(folder))
    weights = _load(folder)
    torch.testing.assert_close(weights.embedding, meant, rtol=1e-6, atol=1e-8)
    if is_tied:
        assert weights.vocabulary.plain() is weights.embedding


def test_rows_do_not_depend_on_company(quantised: Callable[[str], Path]) -> None:
    rows = torch.randn(33, 64, generator=torch.Generator().manual_seed(1)).bfloat16()
    for name in ("awq", "gptq-by-size", "fp8-small-blocks"):
        matrix = _load(quantised(name), torch.bfloat16).layers[0].qkv
        together = matrix.times(rows)
        for begin, end in ((0, 1), (5, 7), (9, 26)):
            assert torch.equal(matrix.times(rows[begin:end]), together[begin:end])


def test_weights_are_read_one_matrix_at_a_time_where_they_are_kept_in_another_form(
    quantised: Callable[[str], Path],
) -> None:
    folder = quantised("awq")
    matrix = open_weights(folder, read_config(folder), dtype=torch.bfloat16, device=_CPU).layers[0].qkv
    assert isinstance(matrix, DeferredMatrix)
    assert matrix.read() is not matrix.read()
    assert torch.equal(matrix.plain(), _load(folder, torch.bfloat16).layers[0].qkv.plain())


def _rewrite(folder: Path, change: Callable[[Tensors], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


_UP = "model.layers.1.mlp.up_proj"


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("awq", {"qweight": None, "qzeros": None, "scales": None}, r"up_proj\.weight: this tensor is missing"),
        ("awq", {"qzeros": None}, r"up_proj\.qzeros: this tensor is missing"),
        ("awq", {"qweight": torch.zeros(64, 11, dtype=torch.int32)}, r"qweight: has shape \[64, 11\], not \[64, 12\]"),
        ("awq", {"qweight": torch.zeros(64, 12)}, r"qweight: has dtype F32; supported are I32"),
        ("awq", {"scales": torch.zeros(1, 96)}, r"scales: has shape \[1, 96\], not \[2, 96\]"),
        (
            "awq",
            {"scales": torch.zeros(2, 96, dtype=torch.int8)},
            r"scales: has dtype I8; supported are BF16, F16, F32",
        ),
        ("awq", {"g_idx": torch.zeros(64, dtype=torch.int32)}, r"up_proj\.g_idx: this tensor is not expected"),
        ("awq", {"bias": torch.zeros(95)}, r"up_proj\.bias: has shape \[95\], not \[96\]"),
        ("gptq", {"qweight": torch.zeros(16, 96, dtype=torch.int32)}, r"qweight: has shape \[16, 96\], not \[8, 96\]"),
        ("gptq", {"g_idx": torch.zeros(63, dtype=torch.int32)}, r"g_idx: has shape \[63\], not \[64\]"),
        ("fp8-blocks", {"weight_scale_inv": None}, r"up_proj\.weight_scale: this tensor is missing"),
        ("fp8-blocks", {"weight_scale_inv": torch.zeros(1, 2)}, r"weight_scale_inv: has shape \[1, 2\], not \[1, 1\]"),
        ("fp8-static", {"weight_scale": torch.zeros(7)}, r"weight_scale: has shape \[7\], not \[\] or \[1\] or"),
        ("fp8-static", {"weight": torch.zeros(96, 64).to(torch.float8_e5m2)}, r"weight: has dtype F8_E5M2"),
        ("compressed-int4", {"weight_scale": torch.zeros(96, 3)}, r"weight_scale: has shape \[96, 3\], not \[96, 2\]"),
        ("compressed-int8", {"weight_scale": torch.zeros(95, 1)}, r"weight_scale: has shape \[95, 1\], not \[96, 1\]"),
        ("fbgemm", {"weight": torch.zeros(96, 64, dtype=torch.int8)}, r"weight: has dtype I8; supported are BF16"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name_before_they_are_read(
    quantised: Callable[[str], Path], name: str, change: dict[str, torch.Tensor | None], words: str
) -> None:
    folder = quantised(name)

    def apply(tensors: Tensors) -> None:
        for part, value in change.items():
            tensors.pop(f"{_UP}.{part}", None)
            if value is not None:
                tensors[f"{_UP}.{part}"] = value

    _rewrite(folder, apply)
    with pytest.raises(ModelFolderProblem, match=words):
        check_weights(folder, read_config(folder))


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (torch.arange(64) // 32 + 1, r"g_idx: has groups 1 to 2, where there are 2 \(0 to 1\)"),
        (torch.arange(64) // 33, r"g_idx: puts 33 inputs into group 0, not 32"),
    ],
)
def test_groups_that_cannot_be_are_refused_when_they_are_read(
    quantised: Callable[[str], Path], groups: torch.Tensor, words: str
) -> None:
    folder = quantised("gptq")
    _rewrite(folder, lambda tensors: tensors.update({f"{_UP}.g_idx": groups.to(torch.int32)}))
    with pytest.raises(ModelFolderProblem, match=words):
        _load(folder)


@pytest.mark.parametrize(
    ("group_size", "outputs", "words"),
    [
        (32, 92, "its 92 outputs are no multiple of 8"),
        (64, 96, "its 96 inputs are no multiple of 64"),
    ],
)
def test_sizes_that_cannot_be_packed_are_refused(
    plain_folder: Path, quantised: Callable[[str], Path], group_size: int, outputs: int, words: str
) -> None:
    folder = quantised("gptq")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["group_size"] = group_size
    config["intermediate_size"] = outputs
    (folder / "config.json").write_text(json.dumps(config))
    if group_size == 64:  # so that what is refused is what does not divide
        repacked = _repacked(plain_folder, folder, group_size)
        _rewrite(folder, lambda tensors: tensors.update(repacked))
    with pytest.raises(ModelFolderProblem, match=words):
        check_weights(folder, read_config(folder))


def _repacked(plain_folder: Path, folder: Path, group_size: int) -> Tensors:
    """The tensors of all modules whose inputs groups of `group_size` divide, packed so."""
    plain = load_file(plain_folder / "model.safetensors")
    found: Tensors = {}
    for name, tensor in plain.items():
        if tensor.dim() == 2 and tensor.shape[1] % group_size == 0 and "_proj" in name:
            stored, _ = pack_gptq(tensor, group_size=group_size, with_bias=True)
            found |= {f"{name.removesuffix('.weight')}.{part}": value.contiguous() for part, value in stored.items()}
    return found


def test_quantised_tensors_without_a_recipe_are_refused(quantised: Callable[[str], Path]) -> None:
    folder = quantised("gptq")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    with pytest.raises(ModelFolderProblem, match=r"q_proj\.weight: this tensor is missing"):
        check_weights(folder, read_config(folder))


def test_scales_of_a_cache_in_fewer_bits_are_left_aside(quantised: Callable[[str], Path]) -> None:
    folder = quantised("fp8-static")
    names = ("self_attn.kv_scale", "self_attn.k_scale", "self_attn.v_scale", "self_attn.k_proj.output_scale")
    _rewrite(folder, lambda tensors: tensors.update({f"model.layers.0.{name}": torch.ones(1) for name in names}))
    check_weights(folder, read_config(folder))
