"""Whether a model's answers can follow a grammar: found out before a request waits for an engine."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from serving.contracts.errors import UnusableGrammar
from serving.contracts.sampling import Grammar
from serving.grammars import GrammarProblem, Grammars


class GrammarChecks:
    """Owns a model's grammars, loaded by `load` or when the first one is asked about, and the one thread that compiles
    them; any event loop may ask.

    How many may wait for the thread is bounded by who lets requests in.
    """

    def __init__(self, folder: Path, *, vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        self._folder = folder
        self._vocab_size = vocab_size
        self._eos_token_ids = frozenset(eos_token_ids)
        self._loading = threading.Lock()
        self._loaded: Grammars | GrammarProblem | None = None
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="grammars")

    def load(self) -> None:
        """Take the tenths of a second now that the first check would take: the library lets no other Python thread run
        meanwhile, and so every stream would stand still."""
        self._load()

    async def check_async(self, grammar: Grammar, *, param: str) -> None:
        """Raise `UnusableGrammar` for `param` where no text of this model can follow `grammar`, or the model none."""
        await asyncio.get_running_loop().run_in_executor(self._executor, lambda: self.check(grammar, param=param))

    def check(self, grammar: Grammar, *, param: str) -> None:
        """As `check_async`, on the caller's thread: milliseconds, the first time some tenths of a second."""
        grammars = self._load()
        if isinstance(grammars, GrammarProblem):
            raise UnusableGrammar(f"structured output is not possible with this model: {grammars}", param=param)
        try:
            grammars.compile(grammar)
        except GrammarProblem as problem:
            raise UnusableGrammar(f"{param} cannot be used: {problem}", param=param) from None

    def close(self) -> None:
        """End the thread; what already waits is checked first."""
        self._executor.shutdown(wait=False)

    def _load(self) -> Grammars | GrammarProblem:
        with self._loading:
            if self._loaded is None:
                self._loaded = self._read()
            return self._loaded

    def _read(self) -> Grammars | GrammarProblem:
        try:
            return Grammars.read(self._folder, vocab_size=self._vocab_size, eos_token_ids=self._eos_token_ids)
        except GrammarProblem as problem:
            return problem
