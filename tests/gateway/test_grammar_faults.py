"""What becomes of a request whose grammar turns out, under way, to be one that nobody can follow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from serving.contracts.errors import UnusableGrammar
from serving.contracts.sampling import Grammar
from tests.gateway.harness import RunningWorker, eventually, read_until_error

_TEXT = "It was the best of times, it was the worst of times."


async def test_a_grammar_that_cannot_be_followed_to_its_end_is_the_clients_fault(
    start_worker: Callable[..., RunningWorker], start_gateway: Callable[..., Any]
) -> None:
    running, gateway = start_worker(), await start_gateway()
    await eventually(lambda: bool(gateway.gateway.pools()[0].has_engines))
    running.runner.scripts[2] = gateway.tokens(_TEXT)
    running.runner.failing_seeds.add(2)
    text, error = await read_until_error(gateway.ask(2, grammar=Grammar("regex", "a*")))
    assert isinstance(error, UnusableGrammar)
    assert error.message == "the grammar cannot be followed: too vague"
    assert _TEXT.startswith(text)
