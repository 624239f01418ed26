"""Log probabilities on their way from token ids to a caller: spelled, and held back with the text that is held back."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Sequence

from serving.contracts.messages import TokenLogprobs
from serving.gateway.text.detokenizer import Detokenizer
from serving.gateway.text.token_spelling import Spelling, TokenSpeller
from serving.gateway.text.tokenizer import TextModel


@dataclasses.dataclass(frozen=True, slots=True)
class Candidate:
    """A token that could have stood at some place, and how probable it was there (natural logarithm)."""

    token_id: int
    spelling: Spelling
    logprob: float


@dataclasses.dataclass(frozen=True, slots=True)
class TokenEntry:
    """A token of a prompt or an answer. Its part of the text is `text_length` characters from `text_offset` on: none
    for a special token, and for the first bytes of a character, which the last of them completes.

    `logprob` is None for a prompt's first token alone, before which nothing stands. `top` are the tokens that were the
    most probable at its place, the most probable first.
    """

    token_id: int
    spelling: Spelling
    logprob: float | None
    top: tuple[Candidate, ...]
    text_offset: int
    text_length: int


class EntryLine:
    """Owns the entries of one choice's tokens whose text was not given yet; called by whoever owns the choice."""

    def __init__(self, speller: TokenSpeller) -> None:
        self._speller = speller
        self._held: deque[TokenEntry] = deque()
        self._num_characters = 0
        self._num_given = 0

    def push(self, token_ids: Sequence[int], logprobs: Sequence[TokenLogprobs], detokenizer: Detokenizer) -> str:
        """Take tokens in, and give the text that `detokenizer` makes of them."""
        pieces = []
        for token_id, found in zip(token_ids, logprobs, strict=True):
            piece = detokenizer.push([token_id])
            self._held.append(
                _entry_of(self._speller, token_id, found, text_offset=self._num_characters, text_length=len(piece))
            )
            self._num_characters += len(piece)
            pieces.append(piece)
        return "".join(pieces)

    def release(self, text: str) -> tuple[TokenEntry, ...]:
        """The entries whose text is out with `text`, which is given now."""
        self._num_given += len(text)
        released = []
        while self._held and self._held[0].text_offset + self._held[0].text_length <= self._num_given:
            released.append(self._held.popleft())
        return tuple(released)

    def stop(self, text: str) -> tuple[TokenEntry, ...]:
        """As `release` of the last text before a stop string; a token that is cut by its begin counts as given."""
        released = self.release(text)
        if self._held and self._held[0].text_offset < self._num_given:
            released += (self._held.popleft(),)
        return released

    def finish(self) -> tuple[TokenEntry, ...]:
        """All that is left, when the text has ended by itself."""
        released = tuple(self._held)
        self._held.clear()
        return released


def prompt_entries(
    text_model: TextModel, prompt_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]
) -> tuple[TokenEntry, ...]:
    """A prompt's tokens; `logprobs` has an entry for each but the first."""
    detokenizer = Detokenizer(text_model)
    entries = []
    offset = 0
    for token_id, found in zip(prompt_ids, (None, *logprobs), strict=True):
        length = len(detokenizer.push([token_id]))
        entries.append(_entry_of(text_model.speller, token_id, found, text_offset=offset, text_length=length))
        offset += length
    return tuple(entries)


def _entry_of(
    speller: TokenSpeller, token_id: int, found: TokenLogprobs | None, *, text_offset: int, text_length: int
) -> TokenEntry:
    top = () if found is None else zip(found.top_ids, found.top_logprobs, strict=True)
    return TokenEntry(
        token_id,
        speller.spell(token_id),
        None if found is None else found.logprob,
        tuple([Candidate(id_, speller.spell(id_), logprob) for id_, logprob in top]),
        text_offset,
        text_length,
    )
