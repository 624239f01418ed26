"""Single tokens as they are shown: of a text's tokens, the bytes joined are the text's."""

from __future__ import annotations

from pathlib import Path

import pytest

from serving.gateway.text.token_spelling import Spelling
from serving.gateway.text.tokenizer import TextModel

TEXT = "The engine opens the regulator: ďábelské 👨‍👩‍👧 漢字"


@pytest.mark.parametrize("kind", ["byte-level", "byte-level-stripped", "metaspace", "byte-fallback"])
def test_bytes_of_a_texts_tokens_are_the_texts(tokenizer_folders: dict[str, Path], kind: str) -> None:
    model = TextModel.load(tokenizer_folders[kind])
    text = TEXT if kind != "metaspace" else "The engine opens the regulator"
    spelled = [model.speller.spell(id_) for id_ in model.encode(text, add_special_tokens=False)]
    joined = b"".join(spelling.text_bytes or b"" for spelling in spelled).decode()
    assert joined.removeprefix(" ") == text


@pytest.mark.parametrize("kind", ["byte-level", "byte-level-stripped", "byte-fallback"])
def test_what_is_no_character_is_named_by_its_bytes(tokenizer_folders: dict[str, Path], kind: str) -> None:
    model = TextModel.load(tokenizer_folders[kind])
    token_ids = model.encode("漢", add_special_tokens=False)[-3:]
    assert [model.speller.spell(id_) for id_ in token_ids] == [
        Spelling(f"bytes:\\x{byte:02x}", bytes([byte])) for byte in "漢".encode()
    ]


@pytest.mark.parametrize("kind", ["byte-level", "metaspace", "byte-fallback", "word-piece"])
def test_special_and_unknown_ids_have_a_name_and_no_bytes(tokenizer_folders: dict[str, Path], kind: str) -> None:
    model = TextModel.load(tokenizer_folders[kind])
    special = model.decoding.tokenizer.token_to_id("<|end|>")
    assert model.speller.spell(special) == Spelling("<|end|>", None)
    assert model.speller.spell(899) == Spelling("<899>", None)


def test_a_token_in_the_middle_of_a_text_keeps_its_space(tokenizer_folders: dict[str, Path]) -> None:
    model = TextModel.load(tokenizer_folders["byte-fallback"])
    token_id = model.decoding.tokenizer.token_to_id("▁engine")
    assert model.speller.spell(token_id) == Spelling(" engine", b" engine")
