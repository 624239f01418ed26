"""Rows that follow a grammar: which tokens each may choose from is asked of who knows grammars."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from serving.contracts.messages import SequenceKey
from serving.contracts.sampling import GRAMMAR_FAULT, Grammar
from serving.engine.plan import PlannedChunk
from serving.engine.sampling.blocks import is_on_cpu
from serving.engine.transfers import upload

_KEPT_CALLS = 64
"""For so many steps a text's matcher is kept unused: whoever has to give way often has its turn again by then, and from
the tokens it is made anew where not."""
_BYTES = np.arange(256, dtype=np.uint8)[:, None]
_CEILINGS = np.where(np.unpackbits(_BYTES, axis=-1, bitorder="little"), np.float32(np.inf), np.float32(-np.inf))
"""For each byte of a mask, the most that the logits of its eight tokens may be: so a row is read and written once, in
a tenth of the time that it takes where single bits are looked at."""

Masks = npt.NDArray[np.int32]
"""A bit a token, the lowest first: `[num_rows, ceil(vocab_size / 32)]`."""


class GrammarMatcher(Protocol):
    """How far one text has come in its grammar. What it raises becomes that text's error."""

    def advance(self, token_ids: list[int]) -> None:
        """Go on by these tokens; raises where the grammar does not admit them."""
        ...

    def fill(self, row: npt.NDArray[np.int32]) -> None:
        """Set in `row`, `[ceil(vocab_size / 32)]`, a bit for each token that may follow, the lowest bit first, and
        clear all others. EOS may follow where the text may end, and nothing else where it must."""
        ...


class MaskProvider(Protocol):
    """Who knows grammars, and the vocabulary that they are written in; any thread may ask."""

    def compile(self, grammar: Grammar) -> GrammarMatcher:
        """A text that follows `grammar` and has not begun; raises where there can be none."""
        ...


@dataclasses.dataclass(slots=True)
class _Text:
    """One sequence's matcher, which has taken in the first `num_read` tokens of `context`."""

    context: Sequence[int]
    grammar: Grammar
    matcher: GrammarMatcher
    num_read: int
    used_at: int = 0


class GrammarMasks:
    """Owns the matchers of the sequences that followed a grammar in the last steps; on the engine's thread.

    A matcher reads on in its sequence's tokens from where it ended, and is made anew from them where they are another
    list: what it admits is a function of grammar and generated tokens, whatever preemption and failover did between.
    """

    def __init__(self, provider: MaskProvider | None) -> None:
        self._provider = provider
        self._texts: dict[SequenceKey, _Text] = {}
        """Those that were used longest ago come first."""
        self._num_calls = 0

    def __len__(self) -> int:
        return len(self._texts)

    def fill(
        self, rows: Sequence[int], chunks: Sequence[PlannedChunk], *, vocab_size: int
    ) -> tuple[Masks, dict[int, str]]:
        """What each of `rows`, which follow grammars, may choose from; and what is wrong with some, by row, of which
        the mask then says nothing. `chunks` are those of all rows."""
        masks = np.zeros((len(rows), -(-vocab_size // 32)), dtype=np.int32)
        errors: dict[int, str] = {}
        for place, row in enumerate(rows):
            try:
                self._text_of(chunks[row]).matcher.fill(masks[place])
            except Exception as error:  # One text's grammar is no reason to end the others.
                self._texts.pop(chunks[row].key, None)
                errors[row] = f"{GRAMMAR_FAULT}: {error}"
        return masks, errors

    def drop_unused(self) -> None:
        """To be called once a step while there are any."""
        self._num_calls += 1
        last = self._num_calls - _KEPT_CALLS
        for key, _ in list(itertools.takewhile(lambda entry: entry[1].used_at < last, self._texts.items())):
            del self._texts[key]

    def _text_of(self, chunk: PlannedChunk) -> _Text:
        grammar = chunk.params.grammar
        assert grammar is not None, "the row follows no grammar"
        text = self._texts.pop(chunk.key, None)
        if text is None or text.context is not chunk.context or text.grammar != grammar:
            if self._provider is None:
                raise ValueError("this engine knows no grammars")
            text = _Text(chunk.context, grammar, self._provider.compile(grammar), chunk.num_prompt_tokens)
        text.matcher.advance(list(chunk.context[text.num_read :]))
        text.num_read = len(chunk.context)
        text.used_at = self._num_calls
        self._texts[chunk.key] = text
        return text


def forbid(logits: torch.Tensor, rows: Sequence[int], masks: Masks) -> None:
    """Give no probability to what `rows` of `logits` `[num_rows, vocab_size]` may not choose by their `masks`."""
    vocab_size = logits.shape[-1]
    octets = masks.view(np.uint8)
    if is_on_cpu(logits):
        values = logits.numpy()
        for row, octets_of_row in zip(rows, octets, strict=True):
            # Row by row, what is taken stays in the processor's cache; and `take` is many times faster than an index.
            ceilings = _CEILINGS.take(octets_of_row, axis=0).reshape(-1)[:vocab_size]
            np.minimum(values[row], ceilings, out=values[row])
        return
    at, octets_there = upload(np.asarray(rows, dtype=np.int64), octets, device=logits.device)
    places = torch.arange(8, device=logits.device, dtype=torch.uint8)
    bits = octets_there[:, :, None] >> places
    is_admitted = (bits & 1).flatten(1)[:, :vocab_size].bool()
    logits[at] = logits[at].masked_fill(~is_admitted, -torch.inf)


def count_admitted(mask: Masks, token_ids: npt.NDArray[np.int64] | None = None) -> int:
    """How many tokens a row's mask, `[ceil(vocab_size / 32)]`, admits; of `token_ids`, where they are given."""
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return int(np.count_nonzero(bits if token_ids is None else bits[token_ids]))
