"""How the bench talks with an engine in a process of its own, and perhaps in an environment of its own.

A driver loads its engine, says that it is ready, then answers each job, a line of JSON on its standard input, with a
line of JSON on its standard output. Standard library only: it is imported by drivers in the peers' environments.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

Generate = Callable[[list[list[int]], int], dict[str, Any]]
"""Answers prompts with that many tokens each; returns `output_tokens` and what else it knows."""


def own_stdout() -> Any:
    """A stream to where standard output goes; what libraries print from now on goes to standard error."""
    stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return stream


def serve(load: Callable[[], Generate]) -> None:
    """Load the engine, then answer jobs until the input ends."""
    answers = own_stdout()
    generate = load()
    _say(answers, {"ready": True})
    for line in sys.stdin:
        job = json.loads(line)
        began = time.perf_counter()
        figures = generate(job["prompts"], job["output_tokens"])
        wall_seconds = time.perf_counter() - began
        rate = round(figures["output_tokens"] / wall_seconds, 2)
        _say(answers, {"wall_seconds": round(wall_seconds, 3), "output_tokens_per_second": rate} | figures)


def _say(stream: Any, message: dict[str, Any]) -> None:
    stream.write(json.dumps(message) + "\n")
    stream.flush()
