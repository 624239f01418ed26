"""Log probabilities on their way from token ids to a caller: spelled, and held back with the text that is held back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from serving.contracts.messages import TokenLogprobs
from serving.gateway.text.detokenizer import Detokenizer
from serving.gateway.text.token_spelling import Spelling, TokenSpeller
from serving.gateway.text.tokenizer import TextModel


# Structs, since a long prompt has a hundred thousand of them: a frozen dataclass takes several times as long to make.
class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A token that could have stood at some place, and how probable it was there (natural logarithm)."""

    token_id: int
    spelling: Spelling
    logprob: float


class TokenEntry(msgspec.Struct, frozen=True, gc=False):
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
        """The entries whose text is out with `text`, which is given now. A token without text comes with the text that
        follows it: it may be a character's first bytes."""
        self._num_given += len(text)
        return self._pop_while(
            lambda entry: entry.text_offset < self._num_given >= entry.text_offset + entry.text_length
        )

    def stop(self, text: str) -> tuple[TokenEntry, ...]:
        """As `release` of the last text before a stop string; a token that is cut by its begin counts as given."""
        self._num_given += len(text)
        return self._pop_while(lambda entry: entry.text_offset < self._num_given)

    def finish(self) -> tuple[TokenEntry, ...]:
        """All that is left, when the text has ended by itself."""
        return self._pop_while(lambda entry: True)

    def _pop_while(self, is_due: Callable[[TokenEntry], bool]) -> tuple[TokenEntry, ...]:
        released = []
        while self._held and is_due(self._held[0]):
            released.append(self._held.popleft())
        return tuple(released)


class PromptEntries:
    """Owns what an engine told of a prompt, and spells it out for who asks first; any thread may ask.

    `logprobs` has an entry for each token of `prompt_ids` but the first.
    """

    def __init__(self, text_model: TextModel, prompt_ids: Sequence[int], logprobs: Sequence[TokenLogprobs]) -> None:
        self._text_model = text_model
        self._prompt_ids = prompt_ids
        self._logprobs = logprobs
        self._entries: tuple[TokenEntry, ...] | None = None

    def entries(self) -> tuple[TokenEntry, ...]:
        """The prompt's tokens in order. Slow for a long prompt: 0.2 s for 8,000 tokens with 20 candidates each."""
        if self._entries is None:
            self._entries = self._spell_out()
        return self._entries

    def _spell_out(self) -> tuple[TokenEntry, ...]:
        detokenizer = Detokenizer(self._text_model)
        entries = []
        offset = 0
        for token_id, found in zip(self._prompt_ids, (None, *self._logprobs), strict=True):
            length = len(detokenizer.push([token_id]))
            entries.append(_entry_of(self._text_model.speller, token_id, found, text_offset=offset, text_length=length))
            offset += length
        return tuple(entries)


def _entry_of(
    speller: TokenSpeller, token_id: int, found: TokenLogprobs | None, *, text_offset: int, text_length: int
) -> TokenEntry:
    spell = speller.spell
    top = () if found is None else zip(found.top_ids, found.top_logprobs, strict=True)
    return TokenEntry(
        token_id,
        spell(token_id),
        None if found is None else found.logprob,
        tuple([Candidate(id_, spell(id_), logprob) for id_, logprob in top]),
        text_offset,
        text_length,
    )
