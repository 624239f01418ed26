"""Single tokens as clients are shown them, beside the text that all tokens together make."""

from __future__ import annotations

import dataclasses

from serving.gateway.text.token_decoding import TokenDecoding, byte_level_bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Spelling:
    """One token: what to call it, and the bytes that it adds to a text: None for a token that adds none (a special
    one, or an id for which the tokenizer has no token).

    Where its bytes are no whole characters, it is called by them: `bytes:\\xe2\\x82`.
    """

    name: str
    text_bytes: bytes | None


class TokenSpeller:
    """Owns the spellings asked for so far, at most one for each token id; any thread may ask."""

    def __init__(self, decoding: TokenDecoding) -> None:
        self._decoding = decoding
        self._known: dict[int, Spelling] = {}
        # In the middle of a text a token keeps its leading space, which decoding it alone would drop.
        self._anchor = _find_anchor(decoding)

    def spell(self, token_id: int) -> Spelling:
        """How `token_id` is spelled."""
        known = self._known.get(token_id)
        if known is None:
            known = self._known[token_id] = self._spell(token_id)
        return known

    def _spell(self, token_id: int) -> Spelling:
        decoding = self._decoding
        if token_id not in decoding.text_ids:
            return Spelling(decoding.tokenizer.id_to_token(token_id) or f"<{token_id}>", None)
        if decoding.token_bytes is not None:
            return _spelling_of(decoding.token_bytes[token_id])
        if decoding.splits_characters:
            return _spelling_of(byte_level_bytes(str(decoding.tokenizer.id_to_token(token_id))))
        if token_id in decoding.byte_ids:
            return _spelling_of(bytes.fromhex(str(decoding.tokenizer.id_to_token(token_id))[3:5]))
        before = self._decode(self._anchor)
        return _spelling_of(self._decode([*self._anchor, token_id])[len(before) :].encode())

    def _decode(self, ids: list[int]) -> str:
        return str(self._decoding.tokenizer.decode(ids, skip_special_tokens=True))


def _spelling_of(text_bytes: bytes) -> Spelling:
    try:
        return Spelling(text_bytes.decode(), text_bytes)
    except UnicodeDecodeError:
        return Spelling("bytes:" + "".join(f"\\x{byte:02x}" for byte in text_bytes), text_bytes)


def _find_anchor(decoding: TokenDecoding) -> list[int]:
    """A token that decodes to something visible, in a list; none where there is none."""
    if decoding.token_bytes is not None:
        return []
    for token_id in sorted(decoding.text_ids - decoding.byte_ids):
        if str(decoding.tokenizer.decode([token_id], skip_special_tokens=True)).strip("\ufffd \n\t"):
            return [token_id]
    return []
