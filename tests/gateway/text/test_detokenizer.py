"""Incremental decoding equals decoding at once, for every kind of tokenizer and every way to split the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers.pre_tokenizers import ByteLevel

from serving.gateway.text.detokenizer import Detokenizer
from serving.gateway.text.tokenizer import TextModel

pytestmark = pytest.mark.heavy

KINDS = ["byte-level", "byte-level-stripped", "metaspace", "byte-fallback", "word-piece"]
HARD_TEXT = "ďábelské 👨‍👩‍👧 🌶️ 漢字かな"
TEXTS = [
    HARD_TEXT,
    "The engine  opens   slowly.",
    " leading space",
    "     much     room      between     ",
    "\n\nlines\n",
    "a" * 50,
    "🇨🇿🏴󠁧󠁢󠁳󠁣󠁴󠁿",
    "مرحبا שלום",
    "� itself",
]


@pytest.fixture(scope="module")
def text_models(tokenizer_folders: dict[str, Path]) -> dict[str, TextModel]:
    return {kind: TextModel.load(folder) for kind, folder in tokenizer_folders.items()}


def stream(model: TextModel, ids: Sequence[int], *, size: int = 1) -> list[str]:
    detokenizer = Detokenizer(model)
    pieces = [detokenizer.push(ids[start : start + size]) for start in range(0, len(ids), size)]
    return [*pieces, detokenizer.finish()]


def byte_ids(model: TextModel, text: str) -> list[int]:
    """The tokens of `text`'s bytes, one a byte."""
    if model.decoding.byte_ids:
        start = min(model.decoding.byte_ids)
        return [start + byte for byte in text.encode()]
    [(written, _)] = ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return [model.decoding.tokenizer.token_to_id(character) for character in written]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("text", TEXTS)
def test_joined_text_equals_reference_decode(text_models: dict[str, TextModel], kind: str, text: str) -> None:
    model = text_models[kind]
    ids = model.encode(text, add_special_tokens=True)
    assert "".join(stream(model, ids)) == model.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_tokens_in_any_portions_equal_reference_decode(
    text_models: dict[str, TextModel], kind: str, data: st.DataObject
) -> None:
    model = text_models[kind]
    all_ids = st.integers(0, max(model.decoding.text_ids) + 3)
    odd_ids = st.sampled_from(sorted(model.decoding.byte_ids | model.special_ids) or [0])
    ids = data.draw(st.lists(all_ids | odd_ids, max_size=60))
    size = data.draw(st.integers(1, 5))
    assert "".join(stream(model, ids, size=size)) == model.decode(ids)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=st.text(max_size=80))
def test_any_text_comes_back_as_reference_decodes_it(text_models: dict[str, TextModel], kind: str, text: str) -> None:
    model = text_models[kind]
    ids = model.encode(text, add_special_tokens=True)
    assert "".join(stream(model, ids)) == model.decode(ids)


@pytest.mark.parametrize("kind", ["byte-level", "byte-level-stripped", "byte-fallback"])
def test_one_byte_a_token_gives_whole_characters_only(text_models: dict[str, TextModel], kind: str) -> None:
    model = text_models[kind]
    pieces = stream(model, byte_ids(model, HARD_TEXT))
    assert "".join(pieces) == HARD_TEXT
    assert not any("\ufffd" in piece for piece in pieces)


def test_four_byte_character_appears_with_its_last_byte(text_models: dict[str, TextModel]) -> None:
    model = text_models["byte-level"]
    assert stream(model, byte_ids(model, "a🌶b")) == ["a", "", "", "", "🌶", "b", ""]


def test_byte_run_appears_when_another_token_ends_it(text_models: dict[str, TextModel]) -> None:
    model = text_models["byte-fallback"]
    the = model.encode("the", add_special_tokens=False)
    pieces = stream(model, [*the, *byte_ids(model, "é"), *the])
    assert pieces == ["the", "", "", "é the", ""]


@pytest.mark.parametrize("kind", ["byte-level", "byte-level-stripped", "byte-fallback"])
def test_character_cut_off_by_the_end_reads_as_reference_decodes_it(
    text_models: dict[str, TextModel], kind: str
) -> None:
    model = text_models[kind]
    ids = [*byte_ids(model, "x"), *byte_ids(model, "🌶")[:3]]
    pieces = stream(model, ids)
    assert "".join(pieces) == model.decode(ids)
    assert pieces[-1].endswith("\ufffd")
    assert not any("\ufffd" in piece for piece in pieces[:-1])


def test_spaces_between_words_survive_token_by_token(text_models: dict[str, TextModel]) -> None:
    for kind in ("metaspace", "byte-fallback"):
        model = text_models[kind]
        ids = model.encode("the engine opens  the", add_special_tokens=False)
        assert "".join(stream(model, ids)) == model.decode(ids) == "the engine opens  the"


@pytest.mark.parametrize("kind", KINDS)
def test_special_and_unknown_tokens_make_no_text(text_models: dict[str, TextModel], kind: str) -> None:
    model = text_models[kind]
    ids = [*model.special_ids, max(model.decoding.text_ids) + 100]
    assert "".join(stream(model, ids)) == ""


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("num_delivered", [0, 1, 5, 9])
def test_later_attempt_goes_on_where_the_earlier_one_stopped(
    text_models: dict[str, TextModel], kind: str, num_delivered: int
) -> None:
    model = text_models[kind]
    ids = model.encode("the engine opens 🌶 and é", add_special_tokens=False)
    first = Detokenizer(model)
    given = first.push(ids[:num_delivered])
    assert given + first.push(ids[num_delivered:]) + first.finish() == model.decode(ids)


@pytest.mark.parametrize("token", ["▁", "�", "▁▁", "x"])
def test_window_stays_short_however_long_the_text(text_models: dict[str, TextModel], token: str) -> None:
    model = text_models["byte-fallback"]
    id_ = model.decoding.tokenizer.token_to_id(token)
    decoded: list[int] = []

    class Counting:
        def decode(self, ids: list[int], *, skip_special_tokens: bool) -> str:
            decoded.append(len(ids))
            return model.decoding.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    detokenizer = Detokenizer(model)
    detokenizer._state._tokenizer = Counting()
    text = "".join(detokenizer.push([id_]) for _ in range(2000)) + detokenizer.finish()
    assert text == model.decode([id_] * 2000)
    assert max(decoded) <= 70


@pytest.mark.model
def test_default_model_streams_what_it_decodes(default_model: Path) -> None:
    model = TextModel.load(default_model)
    for text in [*TEXTS, HARD_TEXT * 20]:
        ids = model.encode(text, add_special_tokens=True)
        assert "".join(stream(model, ids)) == model.decode(ids) == text
    assert "".join(stream(model, range(model.vocab_size))) == model.decode(list(range(model.vocab_size)))
