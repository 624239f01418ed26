"""A model folder's tokenizer: what it encodes, and what it says of a folder it cannot use."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from serving.contracts.errors import InvalidValue
from serving.gateway.text.folder import ModelTextProblem
from serving.gateway.text.tokenizer import TextModel
from tests.gateway.text.conftest import build_byte_level, write_folder


@pytest.fixture
def byte_level(tokenizer_folders: dict[str, Path]) -> TextModel:
    return TextModel.load(tokenizer_folders["byte-level"])


def test_knows_name_bounds_and_special_tokens(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "tiny-model", build_byte_level(), eos_token_id=[1, 7])
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 3}))
    model = TextModel.load(folder)
    assert (model.name, model.vocab_size, model.max_model_len) == ("tiny-model", 900, 1024)
    assert model.eos_token_ids == {1, 3, 7}
    assert model.special_ids == {0, 1}


def test_a_sliding_window_ends_no_context(tmp_path: Path) -> None:
    """The layers that have one see the tokens before it through those below."""
    folder = write_folder(tmp_path, build_byte_level(), model_type="mistral", sliding_window=512)
    assert TextModel.load(folder).max_model_len == 1024


def test_of_a_model_that_sees_images_the_part_that_speaks_counts(tmp_path: Path) -> None:
    text = {"vocab_size": 900, "max_position_embeddings": 2048, "hidden_size": 64, "eos_token_id": 5}
    folder = write_folder(tmp_path, build_byte_level(), vocab_size=None, text_config=text, eos_token_id=[1, 7])
    model = TextModel.load(folder)
    assert (model.vocab_size, model.max_model_len, model.embedding_size) == (900, 2048, 64)
    assert model.eos_token_ids == {1, 5, 7}


def test_what_published_files_leave_open_is_known(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, build_byte_level(), text_config={"model_type": "gemma3_text", "hidden_size": 2560})
    model = TextModel.load(folder)
    assert (model.vocab_size, model.max_model_len, model.embedding_size) == (262_208, 131_072, 2560)


def test_special_tokens_are_added_where_the_tokenizer_says_so(tokenizer_folders: dict[str, Path]) -> None:
    model = TextModel.load(tokenizer_folders["byte-fallback"])
    plain = model.encode("the engine", add_special_tokens=False)
    assert model.encode("the engine", add_special_tokens=True) == [min(model.special_ids - {0}), *plain]


def test_text_of_a_special_token_becomes_that_token(byte_level: TextModel) -> None:
    assert byte_level.encode("<|end|>", add_special_tokens=False) == [1]


def test_long_text_is_neither_cut_nor_padded(tmp_path: Path) -> None:
    tokenizer = build_byte_level()
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=16)
    model = TextModel.load(write_folder(tmp_path, tokenizer))
    assert model.decode(model.encode("x " * 40, add_special_tokens=True)) == "x " * 40
    assert len(model.encode("x", add_special_tokens=True)) == 1


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "x" * 10_000 + "\ud83d"])
async def test_refuses_half_a_surrogate_pair(byte_level: TextModel, text: str) -> None:
    with pytest.raises(InvalidValue, match="surrogate") as refusal:
        byte_level.encode(text, add_special_tokens=True, param="messages")
    assert refusal.value.param == "messages"
    with pytest.raises(InvalidValue, match="surrogate"):
        await byte_level.encode_async(text, add_special_tokens=True)


def test_refuses_text_whose_tokens_the_model_does_not_know(tmp_path: Path) -> None:
    tokenizer = build_byte_level()
    model = TextModel.load(write_folder(tmp_path, tokenizer, vocab_size=tokenizer.get_vocab_size() - 1))
    assert model.encode("two", add_special_tokens=False)
    with pytest.raises(InvalidValue, match="prompt must be text made of tokens that the model knows"):
        model.encode("česky", add_special_tokens=False)


async def test_encodes_long_text_while_the_loop_goes_on(byte_level: TextModel) -> None:
    text = "The driver opens the regulator. " * 10_000
    encoding = asyncio.ensure_future(byte_level.encode_async(text, add_special_tokens=True))
    turns = 0
    while not encoding.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns > 1
    assert await encoding == byte_level.encode(text, add_special_tokens=True)


def test_threads_may_share_it(byte_level: TextModel) -> None:
    texts = [f"engine {index} opens slowly" for index in range(200)]
    expected = [byte_level.encode(text, add_special_tokens=True) for text in texts]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda text: byte_level.encode(text, add_special_tokens=True), texts))
    assert found == expected


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("tokenizer.json", None, "is missing"),
        ("tokenizer.json", "{}", "is no usable tokenizer"),
        ("tokenizer.json", "{", "is not JSON"),
        ("config.json", None, "is missing"),
        ("config.json", "[]", "holds no JSON object"),
        ("config.json", b"\xff", "cannot be read"),
        ("config.json", '{"vocab_size": "many"}', "needs vocab_size"),
        ("config.json", '{"vocab_size": true}', "needs vocab_size"),
        ("config.json", '{"vocab_size": 9}', "needs max_position_embeddings"),
        ("config.json", '{"vocab_size": 9, "max_position_embeddings": 9, "eos_token_id": "x"}', "eos_token_id"),
    ],
)
def test_says_which_file_of_a_folder_is_wrong(
    tmp_path: Path, file: str, content: str | bytes | None, reason: str
) -> None:
    folder = write_folder(tmp_path / "broken", build_byte_level())
    (folder / file).unlink()
    if content is not None:
        (folder / file).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ModelTextProblem, match=reason) as problem:
        TextModel.load(folder)
    assert str(folder) in str(problem.value)
    assert file in str(problem.value)


def test_decoding_what_was_encoded_gives_the_text_back(byte_level: TextModel) -> None:
    text = "ďábelské 👨‍👩‍👧 <think> two words"
    assert byte_level.decode(byte_level.encode(text, add_special_tokens=True)) == text
