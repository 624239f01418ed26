"""Penalties for tokens that a sequence has already: what each has is kept up to date, never counted anew."""

from __future__ import annotations

import array
import dataclasses
from collections.abc import Sequence

import numpy as np
import torch

from serving.contracts.messages import SequenceKey
from serving.contracts.sampling import SamplingParams
from serving.engine.plan import PlannedChunk


@dataclasses.dataclass(frozen=True, slots=True)
class Penalties:
    """The rows of a batch that penalise (`rows`, by index), and how: one entry of the arrays a penalising row."""

    rows: tuple[int, ...]
    presence: torch.Tensor
    frequency: torch.Tensor
    repetition: torch.Tensor

    @classmethod
    def of(cls, params: Sequence[SamplingParams], *, device: torch.device) -> Penalties | None:
        """The penalties of a batch with these parameters; None where no row penalises."""
        rows = tuple(index for index, row in enumerate(params) if _penalises(row))
        if not rows:
            return None
        presence, frequency, repetition = (
            torch.tensor([getattr(params[index], name) for index in rows], dtype=torch.float32, device=device)
            for name in ("presence_penalty", "frequency_penalty", "repetition_penalty")
        )
        return cls(rows, presence, frequency, repetition)


class TokenBooks:
    """Owns what is known of the tokens of the sequences that penalised in the last step; on the engine's thread.

    A sequence's book is read on from where it ended, and begun anew where its list of tokens is another one: a key may
    come again with another attempt.
    """

    def __init__(self) -> None:
        self._books: dict[SequenceKey, _Book] = {}

    def penalise(self, logits: torch.Tensor, penalties: Penalties, chunks: Sequence[PlannedChunk]) -> None:
        """Change `logits` `[num_rows, vocab_size]` of the rows that penalise; `chunks` are those of all rows.

        Repetition (Keskar et al. 2019, "CTRL", section 4.1, for logits of either sign) comes first, over prompt and
        generated tokens; then presence and frequency, over generated tokens alone.
        """
        chosen = [chunks[row] for row in penalties.rows]
        books = {chunk.key: self._book_of(chunk, vocab_size=logits.shape[-1]) for chunk in chosen}
        self._books = books
        ids, counts = (
            torch.from_numpy(np.concatenate([np.frombuffer(column, dtype=np.int64) for column in columns]))
            for columns in ([book.token_ids for book in books.values()], [book.counts for book in books.values()])
        )
        sizes = torch.tensor([len(book.token_ids) for book in books.values()])
        which = torch.repeat_interleave(sizes).to(logits.device)
        ids, times = ids.to(logits.device), counts.to(logits.device, torch.float32)
        rows = torch.tensor(penalties.rows, device=logits.device)[which]
        values = logits[rows, ids]
        factors = penalties.repetition[which]
        values = torch.where(values > 0, values / factors, values * factors)
        values -= times * penalties.frequency[which] + (times > 0) * penalties.presence[which]
        logits[rows, ids] = values

    def _book_of(self, chunk: PlannedChunk, *, vocab_size: int) -> _Book:
        counts_prompt = chunk.params.repetition_penalty != 1.0
        book = self._books.get(chunk.key)
        if book is None or book.context is not chunk.context or book.counts_prompt != counts_prompt:
            book = _Book(chunk, counts_prompt=counts_prompt)
        book.read_on(vocab_size)
        return book


class _Book:
    """Owns the distinct tokens of one sequence and how often each was generated (0: it is in the prompt alone)."""

    __slots__ = ("_num_prompt_tokens", "_num_read", "_places", "context", "counts", "counts_prompt", "token_ids")

    def __init__(self, chunk: PlannedChunk, *, counts_prompt: bool) -> None:
        # Held, and so no other list can take its place under the same identity.
        self.context = chunk.context
        self.counts_prompt = counts_prompt
        self.token_ids = array.array("q")
        self.counts = array.array("q")
        self._places: dict[int, int] = {}
        self._num_prompt_tokens = chunk.num_prompt_tokens
        self._num_read = 0 if counts_prompt else chunk.num_prompt_tokens

    def read_on(self, vocab_size: int) -> None:
        """Take in what the context has more than at the last reading. Tokens outside the vocabulary count nothing."""
        context = self.context
        for position in range(self._num_read, len(context)):
            token_id = context[position]
            if not 0 <= token_id < vocab_size:
                continue
            place = self._places.setdefault(token_id, len(self.token_ids))
            if place == len(self.token_ids):
                self.token_ids.append(token_id)
                self.counts.append(0)
            if position >= self._num_prompt_tokens:
                self.counts[place] += 1
        self._num_read = len(context)


def _penalises(params: SamplingParams) -> bool:
    return params.presence_penalty != 0.0 or params.frequency_penalty != 0.0 or params.repetition_penalty != 1.0
