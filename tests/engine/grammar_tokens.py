"""A tokenizer for the tiny models' vocabulary: every byte, and a few tokens that JSON is made of."""

from __future__ import annotations

import functools

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from serving.grammars import Grammars

VOCABULARY_SIZE = 301
EOS = 2
_SPECIAL = ("<pad>", "<s>", "</s>")
_PIECES = ('{"', '":', '",', "[[", "]]", "tr", "ue", "fa", "ab", "12", "}}", "Ġ{", "Ã©")


@functools.cache
def byte_tokenizer() -> Tokenizer:
    """Ids 0 to 2 are special, 3 to 258 the bytes, then come pieces of two; the last ids are no tokens at all."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*_SPECIAL, *letters, *_PIECES])}
    merges = [(piece[0], piece[1]) for piece in _PIECES]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(_SPECIAL))
    return tokenizer


@functools.cache
def byte_grammars() -> Grammars:
    """Grammars in these tokens."""
    return Grammars(byte_tokenizer().to_str(), vocab_size=VOCABULARY_SIZE, eos_token_ids={EOS})


def text_of(token_ids: list[int]) -> str:
    """What tokens say, special ones left out."""
    return str(byte_tokenizer().decode(token_ids, skip_special_tokens=True))
