"""Masks for the sampler: the model's tokens, and grammars compiled for them."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from serving.grammars import GrammarProblem, Grammars

logger = logging.getLogger(__name__)


def load_masks(folder: Path, *, vocab_size: int, eos_token_ids: Iterable[int]) -> Grammars | None:
    """What an engine's sampler asks about grammars, for the model of `folder`; None, with a line in the log, where its
    tokenizer serves for none. Takes some tenths of a second."""
    try:
        return Grammars.read(folder, vocab_size=vocab_size, eos_token_ids=eos_token_ids)
    except GrammarProblem as problem:
        logger.warning("structured output is not possible with %s: %s", folder.name, problem)
        return None
