"""Hostile bodies against a whole stack: whatever they ask of the engine, it lives on, and holds nothing afterwards."""

from __future__ import annotations

import contextlib
import json

import httpx
import openai
import pytest

from tests.e2e.stack import Stack
from tests.hostile import make_attacks

pytestmark = [pytest.mark.stack, pytest.mark.model]


def test_engine_outlives_hostile_bodies_and_holds_nothing_of_them(
    stack: Stack, client: openai.OpenAI, model: str
) -> None:
    stack.wait_until_idle()
    engine = stack.pid_of("runengine")
    statuses: set[int] = set()
    with httpx.Client(base_url=stack.url, headers=stack.headers, timeout=2.0) as http:
        for attack in make_attacks(11, 300, model=model):
            headers = [(b"content-type", attack.content_type.encode("latin-1"))]
            # Some ask for long answers; who waits for none goes away.
            with contextlib.suppress(httpx.ReadTimeout):
                answer = http.post(attack.path, content=attack.content, headers=headers)
                statuses.add(answer.status_code)
                assert answer.status_code < 500, (attack.path, attack.content[:2000], answer.text)
                if answer.status_code >= 400:
                    assert set(json.loads(answer.text)["error"]) == {"message", "type", "param", "code"}
                else:
                    assert not answer.text.startswith("data:") or answer.text.endswith("data: [DONE]\n\n")
    assert {200, 400} <= statuses
    stack.wait_until_idle()
    assert stack.pid_of("runengine") == engine
    answer = client.completions.create(model=model, prompt="Once upon a time", max_tokens=4)
    assert answer.choices[0].text
