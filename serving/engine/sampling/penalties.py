"""Penalties for tokens that a sequence has already: what each has is kept up to date, never counted anew."""

from __future__ import annotations

import array
import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from serving.contracts.messages import SequenceKey
from serving.contracts.sampling import SamplingParams
from serving.engine.plan import PlannedChunk
from serving.engine.transfers import upload


@dataclasses.dataclass(frozen=True, slots=True)
class Penalties:
    """The rows of a batch that penalise (`rows`, by index), and how: one entry of the tensors, which are on the device,
    a penalising row."""

    rows: npt.NDArray[np.int64]
    presence: torch.Tensor
    frequency: torch.Tensor
    repetition: torch.Tensor

    @classmethod
    def of(cls, params: Sequence[SamplingParams], *, device: torch.device) -> Penalties | None:
        """The penalties of a batch with these parameters; None where no row penalises."""
        rows = [index for index, row in enumerate(params) if _penalises(row)]
        if not rows:
            return None
        columns = (
            np.asarray([getattr(params[index], name) for index in rows], dtype=np.float32)
            for name in ("presence_penalty", "frequency_penalty", "repetition_penalty")
        )
        return cls(np.asarray(rows, dtype=np.int64), *upload(*columns, device=device))


_KEPT_CALLS = 64
"""For so many steps in which others penalise, a book is kept: where the budget does not reach all who decode, each has
its turn again by then."""


class TokenBooks:
    """Owns what is known of the tokens of the sequences that penalised in the last steps; on the engine's thread.

    A sequence's book is read on from where it ended, and begun anew where its list of tokens is another one: a key may
    come again with another attempt.
    """

    def __init__(self) -> None:
        self._books: dict[SequenceKey, _Book] = {}
        """Those that were used longest ago come first."""
        self._num_calls = 0

    def penalise(self, logits: torch.Tensor, penalties: Penalties, chunks: Sequence[PlannedChunk]) -> None:
        """Change `logits` `[num_rows, vocab_size]` of the rows that penalise; `chunks` are those of all rows.

        Repetition (Keskar et al. 2019, "CTRL", section 4.1, for logits of either sign) comes first, over prompt and
        generated tokens; then presence and frequency, over generated tokens alone.
        """
        chosen = [chunks[row] for row in penalties.rows]
        books = [self._book_of(chunk, vocab_size=logits.shape[-1]) for chunk in chosen]
        self._drop_unused()
        listed_ids, counts = (
            np.concatenate([np.frombuffer(column, dtype=np.int64) for column in columns])
            for columns in ([book.token_ids for book in books], [book.counts for book in books])
        )
        sizes = [len(book.token_ids) for book in books]
        which, rows, ids, times = upload(
            np.repeat(np.arange(len(books)), sizes),
            np.repeat(penalties.rows, sizes),
            listed_ids,
            counts.astype(np.float32),
            device=logits.device,
        )
        values = logits[rows, ids]
        factors = penalties.repetition[which]
        values = torch.where(values > 0, values / factors, values * factors)
        values -= times * penalties.frequency[which] + (times > 0) * penalties.presence[which]
        logits[rows, ids] = values

    def _book_of(self, chunk: PlannedChunk, *, vocab_size: int) -> _Book:
        counts_prompt = chunk.params.repetition_penalty != 1.0
        book = self._books.pop(chunk.key, None)
        if book is None or book.context is not chunk.context or book.counts_prompt != counts_prompt:
            book = _Book(chunk, counts_prompt=counts_prompt)
        book.read_on(vocab_size)
        book.used_at = self._num_calls
        self._books[chunk.key] = book
        return book

    def _drop_unused(self) -> None:
        self._num_calls += 1
        last = self._num_calls - _KEPT_CALLS
        for key, _ in list(itertools.takewhile(lambda entry: entry[1].used_at < last, self._books.items())):
            del self._books[key]


class _Book:
    """Owns the distinct tokens of one sequence and how often each was generated (0: it is in the prompt alone)."""

    __slots__ = (
        "_num_prompt_tokens",
        "_num_read",
        "_places",
        "context",
        "counts",
        "counts_prompt",
        "token_ids",
        "used_at",
    )

    def __init__(self, chunk: PlannedChunk, *, counts_prompt: bool) -> None:
        # Held, and so no other list can take its place under the same identity.
        self.context = chunk.context
        self.counts_prompt = counts_prompt
        self.token_ids = array.array("q")
        self.counts = array.array("q")
        self.used_at = 0
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
