"""Text from tokens as they come: whole characters only, and in sum exactly what decoding all at once would give."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Mapping
from typing import Protocol

from tokenizers import Tokenizer

from serving.gateway.text.token_decoding import TokenDecoding
from serving.gateway.text.tokenizer import TextModel

_REPLACEMENT = "\ufffd"
_LONGEST_BLANK_WINDOW = 64


class Detokenizer:
    """Owns the decoding state of one choice's tokens; no thread of its own, called by the one that owns the choice.

    The joined results of `push` and the final `finish` equal the model's `decode` of all ids at once, byte for byte,
    however the ids are split among the calls. A character still in progress is held back; the cost of a token does not
    grow with the text.
    """

    def __init__(self, model: TextModel) -> None:
        self._state = _make_state(model.decoding)

    def push(self, token_ids: Iterable[int]) -> str:
        """The text that these tokens complete; may be empty. Special and unknown tokens make none."""
        return self._state.push(token_ids)

    def finish(self) -> str:
        """The text still held back, U+FFFD for bytes that never became a character. No `push` may follow."""
        return self._state.finish()


class _State(Protocol):
    def push(self, token_ids: Iterable[int]) -> str: ...

    def finish(self) -> str: ...


def _make_state(decoding: TokenDecoding) -> _State:
    if decoding.token_bytes is not None:
        return _ByteLevelState(decoding.token_bytes)
    return _WindowedState(decoding)


class _ByteLevelState:
    """Owns the bytes of a character in progress. For tokenizers whose text is their tokens' bytes, joined."""

    def __init__(self, token_bytes: Mapping[int, bytes]) -> None:
        self._token_bytes = token_bytes
        # Replaces what is no UTF-8 by maximal subparts (Unicode 3.9, "U+FFFD Substitution"), as the tokenizer does.
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Iterable[int]) -> str:
        return self._decoder.decode(b"".join(self._token_bytes.get(id_, b"") for id_ in token_ids))

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class _WindowedState:
    """Owns a window of the last tokens and how much of its text was given. For tokenizers of any kind.

    A token's text depends on its neighbours (the first one loses its leading space, a run of byte tokens is one
    string), so that new text is the difference of two decodings of a short window which begins with tokens already
    given: the way of Text Generation Inference and vLLM (`prefix_offset`, `read_offset`).

    A run of byte tokens is held back until another token ends it. Only then is its text certain: a byte that does not
    fit turns the whole run into U+FFFD, the characters before it included.
    """

    def __init__(self, decoding: TokenDecoding) -> None:
        self._tokenizer: Tokenizer = decoding.tokenizer
        self._text_ids = decoding.text_ids
        self._byte_ids = decoding.byte_ids
        self._splits_characters = decoding.splits_characters
        self._window: list[int] = []
        self._byte_run: list[int] = []
        self._num_given_tokens = 0
        self._num_given_characters = 0

    def push(self, token_ids: Iterable[int]) -> str:
        if not self._extend_window(token_ids):
            return ""
        text = self._decode(self._window)
        if self._splits_characters and text.endswith(_REPLACEMENT):
            return self._give(text[:-1])
        given = self._give(text)
        self._shorten_window()
        return given

    def finish(self) -> str:
        return self._give(self._decode(self._window + self._byte_run))

    def _extend_window(self, token_ids: Iterable[int]) -> bool:
        """Take the tokens in, the byte run at their end apart; whether the window grew."""
        num_before = len(self._window)
        for id_ in token_ids:
            if id_ in self._byte_ids:
                self._byte_run.append(id_)
            elif id_ in self._text_ids:
                self._window += [*self._byte_run, id_]
                self._byte_run.clear()
        return len(self._window) > num_before

    def _give(self, text: str) -> str:
        new_text = text[self._num_given_characters :]
        self._num_given_characters = max(self._num_given_characters, len(text))
        return new_text

    def _shorten_window(self) -> None:
        """Drop the tokens before those last given, where the rest can stand for them as context."""
        rest = self._window[self._num_given_tokens :]
        rest_text = self._decode(rest)
        self._num_given_tokens = len(self._window)
        # What is lost at a window's start (a leading space) must lie within text already given: blanks do not tell.
        if not rest_text.strip() and len(self._window) < _LONGEST_BLANK_WINDOW:
            return
        self._window = rest
        self._num_given_tokens = len(rest)
        self._num_given_characters = len(rest_text)

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))
