"""Importing: the default model's folder, copies of folders, and what is refused."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from tokenizers import Tokenizer, models

from serving.engine.models.config import read_config
from serving.engine.models.importer import ImportProblem, check_folder, import_model
from serving.engine.models.problem import ModelFolderProblem
from tests.engine.quantised_folders import LAYOUTS, quantise_folder

pytestmark = pytest.mark.heavy


@pytest.fixture
def source(tmp_path: Path, tiny_model: Callable[[str], Path]) -> Path:
    """A whole Hugging Face folder: a tiny model with a tokenizer, and files that serving does not need."""
    folder = Path(shutil.copytree(tiny_model("llama"), tmp_path / "tiny-llama"))
    _save_tokenizer(folder, num_tokens=300)
    (folder / "pytorch_model.bin").write_bytes(b"the same weights again")
    return folder


def _save_tokenizer(folder: Path, *, num_tokens: int) -> None:
    vocabulary = {f"word{index}": index for index in range(num_tokens)}
    Tokenizer(models.WordLevel(vocabulary, unk_token="word0")).save(str(folder / "tokenizer.json"))


@pytest.mark.model
def test_the_default_model_keeps_its_special_tokens(default_model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(default_model / "tokenizer.json"))
    encoded = tokenizer.encode("<|im_start|>user")
    assert encoded.ids == [1, tokenizer.token_to_id("user")]
    assert tokenizer.decode([1, 2], skip_special_tokens=True) == ""
    special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    assert {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"} <= special
    settings = json.loads((default_model / "tokenizer_config.json").read_text())
    named = [settings[name] for name in ("bos_token", "eos_token", "pad_token", "unk_token")]
    assert named == ["<|im_start|>", "<|im_end|>", "<|im_end|>", "<|endoftext|>"]
    assert read_config(default_model).eos_token_ids == {tokenizer.token_to_id("<|im_end|>")}


@pytest.mark.model
def test_the_default_model_splits_digits_as_it_was_trained(default_model: Path) -> None:
    tokenizer = Tokenizer.from_file(str(default_model / "tokenizer.json"))
    assert tokenizer.encode("a  12").tokens == ["a", "ĠĠ", "1", "2"]


@pytest.mark.model
def test_the_default_model_has_its_chat_template(default_model: Path) -> None:
    template = default_model / "chat_template.jinja"
    text = template.read_text() if template.exists() else (default_model / "tokenizer_config.json").read_text()
    assert "<|im_start|>" in text
    assert "add_generation_prompt" in text


def test_a_folder_is_copied_without_what_serving_does_not_need(source: Path, tmp_path: Path) -> None:
    folder = import_model(source, into=tmp_path / "models", report=lambda _: None)
    assert folder == tmp_path / "models" / "tiny-llama"
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    assert check_folder(folder) == check_folder(source)


def test_a_folder_with_quantised_weights_is_imported_as_it_is(source: Path, tmp_path: Path) -> None:
    quantised = quantise_folder(source, tmp_path / "tiny-llama-awq", LAYOUTS["awq"])
    shutil.copy(source / "tokenizer.json", quantised)
    target = import_model(quantised, into=tmp_path / "models", report=lambda line: None)
    found = check_folder(target).quantisation
    assert found is not None
    assert found.text == "awq int4"
    assert (target / "model.safetensors").read_bytes() == (quantised / "model.safetensors").read_bytes()


def test_what_is_imported_already_is_kept(source: Path, tmp_path: Path) -> None:
    folder = import_model(source, into=tmp_path / "models", name="mine", report=lambda _: None)
    before = (folder / "model.safetensors").stat().st_mtime_ns
    lines: list[str] = []
    assert import_model(source, into=tmp_path / "models", name="mine", report=lines.append) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert lines == [f"{folder} is there already"]


def test_a_broken_import_that_is_there_already_is_refused_by_name(source: Path, tmp_path: Path) -> None:
    folder = import_model(source, into=tmp_path / "models", report=lambda _: None)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFolderProblem, match=r"model\.safetensors"):
        import_model(source, into=tmp_path / "models", report=lambda _: None)


def test_a_failed_import_leaves_nothing(source: Path, tmp_path: Path) -> None:
    (source / "tokenizer.json").unlink()
    with pytest.raises(ModelFolderProblem, match=r"tokenizer\.json: there is no such file"):
        import_model(source, into=tmp_path / "models", report=lambda _: None)
    assert {path.name for path in (tmp_path / "models").iterdir()} == {".import.lock"}


def test_what_an_interrupted_import_left_is_cleared(source: Path, tmp_path: Path) -> None:
    leftover = tmp_path / "models" / ".importing-abc"
    leftover.mkdir(parents=True)
    (leftover / "model.safetensors").write_bytes(b"half")
    import_model(source, into=tmp_path / "models", report=lambda _: None)
    assert not leftover.exists()


def test_imports_at_the_same_time_make_one_folder(source: Path, tmp_path: Path) -> None:
    into = tmp_path / "models"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=import_model, args=(source,), kwargs={"into": into}) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    assert {path.name for path in into.iterdir()} == {".import.lock", "tiny-llama"}


def test_a_tokenizer_larger_than_the_model_is_refused(source: Path) -> None:
    _save_tokenizer(source, num_tokens=302)
    with pytest.raises(ModelFolderProblem, match=r"tokenizer\.json: has 302 tokens, the model 301"):
        check_folder(source)


def test_a_broken_tokenizer_is_refused(source: Path) -> None:
    (source / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelFolderProblem, match=r"tokenizer\.json: cannot be read"):
        check_folder(source)


@pytest.mark.parametrize("name", ["", "../up", "a/b", ".hidden", ".."])
def test_a_name_that_is_no_folder_name_is_refused(source: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(ImportProblem, match="cannot be a model's name"):
        import_model(source, into=tmp_path, name=name or "/", report=lambda _: None)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04 something else")
    with pytest.raises(ImportProblem, match="is not a GGUF file"):
        import_model(path, into=tmp_path / "models", report=lambda _: None)


def test_a_broken_gguf_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + b"\x03\x00\x00\x00" + b"\xff" * 64)
    with pytest.raises(ImportProblem, match=r"model\.gguf could not be converted: ") as caught:
        import_model(path, into=tmp_path / "models", report=lambda _: None)
    assert "\n" not in str(caught.value)


def test_a_gguf_file_of_another_architecture_is_refused_by_name(tmp_path: Path) -> None:
    import gguf

    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ImportProblem, match="architecture 'gpt2' is not supported; supported are llama"):
        import_model(path, into=tmp_path / "models", report=lambda _: None)


def test_a_place_that_cannot_be_written_is_one_line(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ImportProblem, match="cannot write to"):
        import_model(source, into=tmp_path / "file" / "models", report=lambda _: None)


def test_the_command_imports_and_says_where(source: Path, tmp_path: Path) -> None:
    output = StringIO()
    call_command("importmodel", str(source), into=tmp_path / "models", name="mine", stdout=output)
    assert f"imported {tmp_path / 'models' / 'mine'}" in output.getvalue()


def test_the_command_reports_a_problem_without_a_traceback(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match="is neither a GGUF file nor a folder"):
        call_command("importmodel", str(tmp_path / "nothing"), into=tmp_path / "models", stdout=StringIO())
    assert list(tmp_path.iterdir()) == []
