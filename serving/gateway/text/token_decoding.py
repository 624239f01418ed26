"""How a tokenizer makes text of tokens: what an incremental detokeniser must know of it beforehand."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")


@dataclasses.dataclass(frozen=True, slots=True)
class TokenDecoding:
    """A tokenizer's way from tokens to text. Immutable; shared by every detokeniser of a model.

    `token_bytes` is set where text is nothing but the tokens' bytes joined (byte-level BPE): the bytes by token id,
    special tokens left out. Elsewhere `text_ids` are the tokens that make text, and `byte_ids` those among them that
    stand for a single byte (SentencePiece's byte fallback). With `splits_characters`, a token may end in the middle of
    a character, which then reads U+FFFD.
    """

    tokenizer: Tokenizer
    token_bytes: Mapping[int, bytes] | None
    text_ids: frozenset[int]
    byte_ids: frozenset[int]
    splits_characters: bool

    @classmethod
    def of(cls, tokenizer: Tokenizer, definition: Mapping[str, Any]) -> TokenDecoding:
        """`definition` is the content of the `tokenizer.json` that `tokenizer` was built from."""
        decoder = definition.get("decoder")
        special = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
        text_tokens = {id_: token for token, id_ in tokenizer.get_vocab().items() if token not in special}
        steps = {step.get("type") for step in _steps(decoder)}
        has_fallback = "ByteFallback" in steps
        return cls(
            tokenizer=tokenizer,
            token_bytes=_bytes_by_id(text_tokens) if steps == {"ByteLevel"} else None,
            text_ids=frozenset(text_tokens),
            byte_ids=frozenset(id_ for id_, token in text_tokens.items() if has_fallback and _is_byte(token)),
            splits_characters="ByteLevel" in steps,
        )


def byte_level_bytes(token: str) -> bytes:
    """What a token of a byte-level tokenizer, as its vocabulary writes it, adds to a text."""
    return _token_bytes(token, _byte_level_alphabet())


def _steps(decoder: Any) -> Iterator[Mapping[str, Any]]:
    """The decoder's single steps, sequences unfolded."""
    if not isinstance(decoder, Mapping):
        return
    if decoder.get("type") != "Sequence":
        yield decoder
        return
    for step in decoder.get("decoders", ()):
        yield from _steps(step)


def _is_byte(token: str) -> bool:
    return _BYTE_TOKEN.fullmatch(token) is not None


def _bytes_by_id(tokens: Mapping[int, str]) -> dict[int, bytes]:
    alphabet = _byte_level_alphabet()
    return {id_: _token_bytes(token, alphabet) for id_, token in tokens.items()}


def _token_bytes(token: str, alphabet: Mapping[str, int]) -> bytes:
    """A token written in the byte-level alphabet is its bytes; any other (an added one) is its own UTF-8."""
    try:
        return bytes([alphabet[character] for character in token])
    except KeyError:
        return token.encode("utf-8")


def _byte_level_alphabet() -> dict[str, int]:
    """The printable character that stands for each byte (GPT-2, Radford et al. 2019, `bytes_to_unicode`): Latin-1's
    visible characters stand for themselves, the other bytes follow in order from U+0100."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(0x100) if byte not in set(visible)]
    return {chr(byte): byte for byte in visible} | {chr(0x100 + index): byte for index, byte in enumerate(hidden)}
