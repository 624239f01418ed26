"""Small tokenizers of the kinds in use, each built by the library itself, and model folders around them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

CORPUS = [
    "The driver opens the regulator, and the engine moves off slowly.",
    "Where the line falls, she shuts it again; where it rises, she opens it wide.",
    "Steam, water, fire: three gauges  and two hands. Čas běží, ďábelské tempo!",
] * 20
SPECIAL = ["<|start|>", "<|end|>"]
VOCABULARY_SIZE = 900


def _train(tokenizer: Tokenizer, *, specials: list[str], alphabet: list[str]) -> None:
    trainer = trainers.BpeTrainer(
        vocab_size=500, initial_alphabet=alphabet, special_tokens=specials, show_progress=False, min_frequency=2
    )
    tokenizer.train_from_iterator(CORPUS, trainer)


def build_byte_level() -> Tokenizer:
    """As GPT-2, Llama 3, Qwen and SmolLM2: text is the tokens' bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    _train(tokenizer, specials=SPECIAL, alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.add_tokens([AddedToken("<think>"), AddedToken("two words"), AddedToken("česky")])
    return tokenizer


def build_byte_level_stripped() -> Tokenizer:
    """Byte-level, with another step after it, so that its text is not just the tokens' bytes."""
    tokenizer = build_byte_level()
    tokenizer.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Fuse(), decoders.Strip(" ", 3, 0)])
    return tokenizer


def build_metaspace() -> Tokenizer:
    """A first word's space is the tokenizer's own and vanishes in decoding."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    _train(tokenizer, specials=["<unk>", *SPECIAL], alphabet=[])
    return tokenizer


def build_byte_fallback() -> Tokenizer:
    """As Llama 2 and Mistral: SentencePiece with a token a byte for what the vocabulary lacks."""
    byte_tokens = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["<unk>", *SPECIAL, *byte_tokens, *(chr(code) for code in range(0x21, 0x7F)), "▁", "▁▁", "�", "字"]
    words = ["th", "▁th", "▁the", "he", "▁engine", "en", "▁o", "pens"]
    vocabulary = {piece: id_ for id_, piece in enumerate([*pieces, *words])}
    merges = [("t", "h"), ("▁", "th"), ("▁th", "e"), ("▁", "▁"), ("e", "n"), ("▁", "o"), ("h", "e")]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", *SPECIAL])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|start|> $A", special_tokens=[("<|start|>", vocabulary["<|start|>"])]
    )
    return tokenizer


def build_word_piece() -> Tokenizer:
    """As BERT: words joined by spaces, pieces of one word marked."""
    words = ["[UNK]", "the", "engine", "##s", "##ing", "open", ".", ",", "!", "do", "not", "n't", "'", *SPECIAL]
    tokenizer = Tokenizer(models.WordPiece({word: id_ for id_, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\s+"), "removed")
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[UNK]", *SPECIAL])
    return tokenizer


BUILDERS = {
    "byte-level": build_byte_level,
    "byte-level-stripped": build_byte_level_stripped,
    "metaspace": build_metaspace,
    "byte-fallback": build_byte_fallback,
    "word-piece": build_word_piece,
}


def write_folder(folder: Path, tokenizer: Tokenizer, **config: object) -> Path:
    """A model's folder as far as text needs it."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    content = {"vocab_size": VOCABULARY_SIZE, "max_position_embeddings": 1024, "eos_token_id": 1, **config}
    (folder / "config.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="session")
def tokenizer_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for each kind of tokenizer."""
    root = tmp_path_factory.mktemp("tokenizers")
    return {kind: write_folder(root / kind, build()) for kind, build in BUILDERS.items()}
