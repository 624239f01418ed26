"""The playground: its page, and a body of the API's answered in lines."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from serving.audit.models import AuditEvent
from serving.contracts.errors import InvalidValue, QueueFull
from serving.tuning.services import ensure_pool
from tests.dashboard.harness import HOST, ORIGIN, POOL, Services, new_session
from tests.dashboard.tenancy import browser, in_thread, page_of, session_of, words

PAGE = "/console/playground/"
BODY = {"model": "a-model", "messages": [{"role": "user", "content": "a private question"}], "stream": True}
TIMINGS = SimpleNamespace(
    queue_seconds=0.5, prefill_seconds=0.25, decode_seconds=1.0, num_preemptions=1, num_cached_tokens=4
)


@dataclasses.dataclass
class ScriptedPrompter:
    """Answers with `pieces`, or refuses; keeps what it was asked."""

    pieces: list[Any] = dataclasses.field(default_factory=list)
    refusal: Exception | None = None
    timings: Any = None
    asked: list[Any] = dataclasses.field(default_factory=list)

    async def play(
        self, pool: str, endpoint: str, given: Any, *, cleanup: contextlib.AsyncExitStack, **more: Any
    ) -> Any:
        self.asked.append((pool, endpoint, given, more))
        if self.refusal is not None:
            raise self.refusal
        return self

    @property
    def usage(self) -> Any:
        return SimpleNamespace(prompt_tokens=9, completion_tokens=3, timings=self.timings)

    async def __aiter__(self) -> AsyncIterator[Any]:
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece


def delta(text: str, num_tokens: int = 1, finish_reason: str | None = None, logprobs: Any = None) -> Any:
    return SimpleNamespace(text=text, num_tokens=num_tokens, finish_reason=finish_reason, logprobs=logprobs)


def token(name: str, logprob: float, *top: Any) -> Any:
    return SimpleNamespace(spelling=SimpleNamespace(name=name), logprob=logprob, top=top)


@pytest.fixture
def prompter(services: Services) -> ScriptedPrompter:
    services.prompter = ScriptedPrompter([delta("Hel", 2), delta("", 1), delta("lo", 1, "stop")], timings=TIMINGS)
    return services.prompter  # type: ignore[no-any-return]


async def play(
    application: Any,
    cookie: str | None,
    body: Any = BODY,
    *,
    endpoint: str = "chat",
    pool: str = POOL,
    token: bool = True,
) -> httpx.Response:
    async with browser(application, cookie) as client:
        client.cookies.set("csrftoken", "t" * 32)
        headers = {"Origin": ORIGIN, "Host": HOST, **({"X-CSRFToken": "t" * 32} if token else {})}
        content = body if isinstance(body, bytes) else json.dumps(body)
        return await client.post(f"/console/pools/{pool}/play/{endpoint}", content=content, headers=headers)


def lines_of(response: httpx.Response) -> list[Any]:
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


async def test_an_answer_comes_in_lines_with_its_own_intervals(
    application: Any, operator: str, prompter: ScriptedPrompter
) -> None:
    response = await play(application, operator)
    assert lines_of(response) == [
        {"text": "Hel", "tokens": 2},
        {"text": "lo", "tokens": 4},
        {
            "done": {
                "finish_reason": "stop",
                "prompt_tokens": 9,
                "completion_tokens": 3,
                "queue_ms": 500.0,
                "prefill_ms": 250.0,
                "decode_ms": 1000.0,
                "num_preemptions": 1,
                "num_cached_tokens": 4,
            }
        },
    ]
    ((pool, endpoint, given, more),) = prompter.asked
    assert (pool, endpoint, given) == (POOL, "chat", BODY)
    assert more["request_id"] == response.headers["X-Request-Id"]


async def test_probabilities_come_with_their_tokens_and_timings_where_an_engine_told(
    application: Any, operator: str, prompter: ScriptedPrompter
) -> None:
    prompter.timings = None
    prompter.pieces = [delta("Hi", 1, "length", [token("Hi", -0.5, token("Hi", -0.5), token("Ho", -1.5))])]
    first, last = lines_of(await play(application, operator, endpoint="completion"))
    top = [{"token": "Hi", "logprob": -0.5}, {"token": "Ho", "logprob": -1.5}]
    assert first == {"text": "Hi", "tokens": 1, "logprobs": [{"token": "Hi", "logprob": -0.5, "top": top}]}
    assert last == {"done": {"finish_reason": "length", "prompt_tokens": 9, "completion_tokens": 3}}


async def test_that_it_was_asked_is_kept_and_not_what(
    application: Any, operator: str, prompter: ScriptedPrompter
) -> None:
    request_id = (await play(application, operator)).headers["X-Request-Id"]
    event = await AuditEvent.objects.aget(action="prompt sent")
    assert (event.actor, event.subject_kind, event.subject, event.pool) == ("operator", "request", request_id, POOL)
    assert "private" not in repr(vars(event))


async def test_what_is_refused_names_its_field(application: Any, operator: str, prompter: ScriptedPrompter) -> None:
    prompter.refusal = InvalidValue("temperature", 9, "a number from 0 to 2")
    refused = await play(application, operator)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "temperature")
    prompter.refusal = QueueFull("full", retry_after_seconds=3)
    refused = await play(application, operator)
    assert (refused.status_code, refused.headers["Retry-After"]) == (429, "3")
    assert not await AuditEvent.objects.filter(action="prompt sent").aexists()
    for body in (b"{", b"[]", b'{"a": NaN}', b"\xff"):
        assert (await play(application, operator, body)).status_code == 400
    assert (await play(application, operator, endpoint="embedding")).status_code == 404
    assert len(prompter.asked) == 2


async def test_it_takes_the_permission_to_prompt_and_a_token_against_forgery(
    application: Any, operator: str, prompter: ScriptedPrompter
) -> None:
    viewer = await new_session("viewer", may_prompt=False)
    assert (await play(application, viewer)).status_code == 403
    assert (await play(application, None)).status_code == 401
    assert (await play(application, operator, token=False)).status_code == 403
    assert prompter.asked == []
    async with browser(application, viewer) as client:
        page = await page_of(client, PAGE)
    assert "You may watch, but not ask the model" in page
    assert "playground.js" not in page


async def test_the_page_offers_every_pool_and_every_parameter(application: Any, pool: str) -> None:
    await in_thread(ensure_pool)("bulk", "a-model")
    await in_thread(ensure_pool)("other", "b-model")
    async with browser(application, await session_of("operator")) as client:
        page = await page_of(client, f"{PAGE}?pool=other")
        assert 'value="other" data-model="b-model" data-only="true"' in page
        assert 'value="bulk" data-model="a-model" data-only="false"' in page
        assert page.count(" selected>") == 1
        assert "other · b-model" in words(page)
        for name in ("max_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "repetition_penalty"):
            assert f'id="{name}"' in page
        assert (await client.get(f"{PAGE}?pool=%00")).status_code == 200
    async with browser(application, None) as client:
        assert (await client.get(PAGE)).status_code == 302
