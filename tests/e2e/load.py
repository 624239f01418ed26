"""Clients that keep an engine busy."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import openai

from tests.e2e.stack import Stack


@contextlib.contextmanager
def load(stack: Stack, *, num_clients: int = 6) -> Iterator[None]:
    """Clients that ask one thing after another until the block is left."""
    stopping = threading.Event()

    def ask_again_and_again() -> None:
        with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.first_run["api_key"], max_retries=0) as client:
            model = client.models.list().data[0].id
            while not stopping.is_set():
                _ask(client, model, stopping)

    clients = [threading.Thread(target=ask_again_and_again) for _ in range(num_clients)]
    for thread in clients:
        thread.start()
    try:
        yield
    finally:
        stopping.set()
        for thread in clients:
            thread.join()


def _ask(client: openai.OpenAI, model: str, stopping: threading.Event) -> None:
    extra: dict[str, Any] = {"ignore_eos": True}
    chunks = client.completions.create(
        model=model, prompt="A list of words:", max_tokens=48, stream=True, extra_body=extra
    )
    with chunks:
        for _ in chunks:
            if stopping.is_set():
                return
