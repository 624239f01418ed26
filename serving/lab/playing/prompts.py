"""The texts that a workload's requests ask with: never the same twice, but for what the workload says is shared."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from typing import Any, Final

from serving.lab.playing.target import Prompts
from serving.lab.workloads.workload import PlannedRequest

_FIRST_TOKEN_ID, _LAST_TOKEN_ID = 1000, 40_000
"""Ids that most vocabularies have, and that are words or parts of such."""

_WORDS: Final = (
    *("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state"),
    *("family", "student", "group", "country", "problem", "hand", "part", "place", "case", "week", "company", "system"),
    *("question", "work", "number", "night", "point", "home", "water", "room", "mother", "area", "money", "story"),
    *("month", "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side", "kind", "head"),
    *("house", "service", "friend", "father", "power", "hour", "game", "line", "end", "member", "law", "car", "city"),
    *("name", "team", "minute", "idea", "body", "back", "parent", "face", "level", "office", "door", "health", "art"),
)
"""Words that most vocabularies have whole."""


class PromptMaker:
    """Owns the shared beginnings that were made; for one thread. Everything follows from seed and salt.

    Each play has a `salt` of its own: a server keeps what it computed of a prompt, and whoever asked the very same
    again would find the second play faster than the first, whatever was changed in between.
    """

    def __init__(self, *, seed: int, prompts: Prompts, salt: str = "") -> None:
        self._seed = f"{salt}{seed}"
        self._prompts = prompts
        self._draw: Callable[[random.Random, int], list[Any]] = _draw_ids if prompts == "tokens" else _draw_words
        self._shared: dict[tuple[str, int], list[Any]] = {}

    def prompt(self, planned: PlannedRequest) -> list[int] | str:
        """Ids of as many tokens as the request has; or so many words, most of which are a token each."""
        own = self._draw(random.Random(f"{self._seed}:{planned.index}"), planned.num_prompt_tokens)
        if planned.prefix is not None and planned.num_prefix_tokens:
            own[: planned.num_prefix_tokens] = self._beginning(planned)
        return own if self._prompts == "tokens" else " ".join(own)

    def _beginning(self, planned: PlannedRequest) -> list[Any]:
        assert planned.prefix is not None, "only a request with a prefix has a beginning"
        place = (planned.request_class, planned.prefix)
        known = self._shared.get(place, [])
        if len(known) < planned.num_prefix_tokens:
            rng = random.Random(f"{self._seed}:{zlib.crc32(planned.request_class.encode())}:{planned.prefix}")
            known = self._shared[place] = self._draw(rng, planned.num_prefix_tokens)
        return known[: planned.num_prefix_tokens]


def _draw_ids(rng: random.Random, count: int) -> list[Any]:
    return rng.choices(range(_FIRST_TOKEN_ID, _LAST_TOKEN_ID), k=count)


def _draw_words(rng: random.Random, count: int) -> list[Any]:
    return rng.choices(_WORDS, k=count)
