"""The prompt box: a question checked, an answer streamed, a refusal told."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from serving.contracts.errors import (
    ContextLengthExceeded,
    DomainError,
    EngineFailure,
    PermissionDenied,
    PoolNotFound,
    PredictedTooLate,
    PromptTooLong,
    QueueFull,
    QuotaSpent,
    RateLimited,
    Unavailable,
)
from tests.dashboard.harness import HOST, ORIGIN, PATIENCE_SECONDS, POOL, Services, new_session

PATH = f"/console/pools/{POOL}/prompt"
QUESTION = {"text": "Hello?", "max_tokens": 16, "temperature": 0.5}


@dataclasses.dataclass
class ScriptedPrompter:
    """Answers with `pieces` (an event among them is waited for) or refuses with `refusal`; keeps what it was asked."""

    pieces: list[Any] = dataclasses.field(default_factory=list)
    refusal: Exception | None = None
    asked: list[Any] = dataclasses.field(default_factory=list)
    num_cleaned: int = 0

    async def prompt(self, pool: str, text: str, *, cleanup: contextlib.AsyncExitStack, **more: Any) -> Any:
        self.asked.append((pool, text, more))
        cleanup.callback(self._clean)
        if self.refusal is not None:
            raise self.refusal
        return ScriptedAnswer(self.pieces)

    def _clean(self) -> None:
        self.num_cleaned += 1


class ScriptedAnswer:
    def __init__(self, pieces: list[Any]) -> None:
        self._pieces = pieces
        self.usage = SimpleNamespace(prompt_tokens=9, completion_tokens=3)

    async def __aiter__(self) -> AsyncIterator[Any]:
        for piece in self._pieces:
            if isinstance(piece, Exception):
                raise piece
            if isinstance(piece, asyncio.Event):
                await piece.wait()
                continue
            yield piece


def delta(text: str, finish_reason: str | None = None) -> Any:
    return SimpleNamespace(text=text, finish_reason=finish_reason)


@pytest.fixture
def prompter(services: Services) -> ScriptedPrompter:
    services.prompter = ScriptedPrompter([delta("Hel"), delta("lo\n“you”"), delta("", "stop")])
    return services.prompter


async def ask(application: Any, cookie: str | None, body: Any = QUESTION, **headers: str) -> httpx.Response:
    cookies = {"csrftoken": "t" * 32} | ({} if cookie is None else {"sessionid": cookie})
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {"X-CSRFToken": "t" * 32, "Content-Type": "application/json", **headers}
    transport = httpx.ASGITransport(application)
    async with httpx.AsyncClient(transport=transport, base_url=ORIGIN, cookies=cookies) as client:
        return await client.post(PATH, content=content, headers=given)


async def test_an_answer_comes_in_lines(application: Any, operator: str, prompter: ScriptedPrompter) -> None:
    response = await ask(application, operator)
    assert (response.status_code, response.headers["Content-Type"]) == (200, "application/x-ndjson")
    assert response.headers["Cache-Control"] == "no-store"
    assert [json.loads(line) for line in response.text.splitlines()] == [
        {"text": "Hel"},
        {"text": "lo\n“you”"},
        {"done": {"finish_reason": "stop", "prompt_tokens": 9, "completion_tokens": 3}},
    ]
    ((pool, text, more),) = prompter.asked
    assert (pool, text, more["max_tokens"], more["temperature"]) == (POOL, "Hello?", 16, 0.5)
    assert more["request_id"] == response.headers["X-Request-Id"]
    assert prompter.num_cleaned == 1


async def test_to_ask_takes_a_permission_of_its_own(application: Any, prompter: ScriptedPrompter) -> None:
    assert (await ask(application, await new_session("asker", may_steer=False))).status_code == 200
    refused = await ask(application, await new_session("viewer", may_prompt=False))
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "permission_denied")
    assert "not ask the model" in refused.json()["error"]["message"]
    assert len(prompter.asked) == 1


@pytest.mark.parametrize(
    ("error", "code"), [(EngineFailure("it died"), "engine_error"), (RuntimeError("a secret"), "internal_error")]
)
async def test_a_failure_after_the_beginning_is_the_last_line(
    application: Any, operator: str, prompter: ScriptedPrompter, error: Exception, code: str
) -> None:
    prompter.pieces = [delta("Hel"), error]
    response = await ask(application, operator)
    *_, last = [json.loads(line) for line in response.text.splitlines()]
    assert (response.status_code, last["error"]["code"]) == (200, code)
    assert "a secret" not in response.text
    assert prompter.num_cleaned == 1


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (ContextLengthExceeded("too long", param="text"), 400),
        (PoolNotFound("there is no pool"), 404),
        (QueueFull("full", retry_after_seconds=2.1), 429),
        (PredictedTooLate("late", retry_after_seconds=2.1), 429),
        (RateLimited("too many", retry_after_seconds=2.1, is_final=False), 429),
        (QuotaSpent("too much", retry_after_seconds=2.1, is_final=True), 429),
        (PromptTooLong("too long"), 400),
        (PermissionDenied("switched off"), 403),
        (Unavailable("no engine", retry_after_seconds=5), 503),
        (RuntimeError("a secret"), 500),
    ],
)
async def test_a_refusal_has_its_status(
    application: Any, operator: str, prompter: ScriptedPrompter, refusal: Exception, status: int
) -> None:
    prompter.refusal = refusal
    response = await ask(application, operator)
    error = response.json()["error"]
    assert response.status_code == status
    assert error["code"] == (refusal.code if isinstance(refusal, DomainError) else "internal_error")
    assert "a secret" not in response.text
    assert response.headers.get("Retry-After") == {429: "3", 503: "5"}.get(status)


@pytest.mark.parametrize(
    ("changes", "code", "param", "words"),
    [
        ({"text": ""}, "invalid_value", "text", ["''", "1 to 20000"]),
        ({"text": " \n"}, "invalid_value", "text", ["1 to 20000"]),
        ({"text": "x" * 20_001}, "invalid_value", "text", ["1 to 20000"]),
        ({"text": 5}, "invalid_value", "text", ["5"]),
        ({"text": None}, "invalid_value", "text", ["None"]),
        ({"max_tokens": 0}, "invalid_value", "max_tokens", ["0", "1 to 2048"]),
        ({"max_tokens": 2049}, "invalid_value", "max_tokens", ["2049"]),
        ({"max_tokens": 1.5}, "invalid_value", "max_tokens", ["1.5"]),
        ({"max_tokens": True}, "invalid_value", "max_tokens", ["True"]),
        ({"temperature": -0.1}, "invalid_value", "temperature", ["-0.1", "0 to 2"]),
        ({"temperature": 2.1}, "invalid_value", "temperature", ["2.1"]),
        ({"temperature": 10**400}, "invalid_value", "temperature", ["0 to 2"]),
        ({"temperature": "1"}, "invalid_value", "temperature", ["'1'"]),
        ({"top_p": 1}, "unknown_field", "top_p", ["top_p"]),
    ],
)
async def test_senseless_questions_are_refused_naming_field_value_and_bounds(
    application: Any,
    operator: str,
    prompter: ScriptedPrompter,
    changes: dict[str, Any],
    code: str,
    param: str,
    words: list[str],
) -> None:
    response = await ask(application, operator, {**QUESTION, **changes})
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (400, code, param)
    assert all(word in error["message"] for word in words)
    assert prompter.asked == []


@pytest.mark.parametrize("body", [b"", b"no JSON", b"[]", b"\xff", b"[" * 100_000, b'{"temperature": NaN}'])
async def test_what_is_no_json_object_is_refused(
    application: Any, operator: str, prompter: ScriptedPrompter, body: bytes
) -> None:
    response = await ask(application, operator, body)
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


async def test_bounds_themselves_are_admitted(application: Any, operator: str, prompter: ScriptedPrompter) -> None:
    for edge in (
        {"text": "x" * 20_000, "max_tokens": 2048, "temperature": 2},
        {"text": "x", "max_tokens": 1, "temperature": 0},
    ):
        assert (await ask(application, operator, edge)).status_code == 200


async def test_nobody_else_may_ask(application: Any, operator: str, prompter: ScriptedPrompter) -> None:
    stranger = await ask(application, None)
    assert (stranger.status_code, stranger.json()["error"]["code"]) == (401, "signed_out")
    outsider = await ask(application, await new_session("someone", is_staff=False))
    assert (outsider.status_code, outsider.json()["error"]["code"]) == (403, "permission_denied")
    assert (await ask(application, operator, **{"X-CSRFToken": "x" * 32})).status_code == 403
    assert (await ask(application, operator, Origin="https://evil.example")).status_code == 403
    assert prompter.asked == []


async def test_text_goes_out_as_it_comes_and_ends_with_a_client_that_leaves(
    application: Any, operator: str, prompter: ScriptedPrompter
) -> None:
    prompter.pieces = [delta("Hel"), asyncio.Event()]
    to_server: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    from_server: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
    headers = {
        "host": HOST,
        "content-type": "application/json",
        "cookie": f"sessionid={operator}; csrftoken={'t' * 32}",
        "x-csrftoken": "t" * 32,
    }
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": PATH,
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    serving = asyncio.create_task(application(scope, to_server.get, from_server.put))
    to_server.put_nowait({"type": "http.request", "body": json.dumps(QUESTION).encode()})
    async with asyncio.timeout(PATIENCE_SECONDS):
        assert (await from_server.get())["status"] == 200
        assert json.loads((await from_server.get())["body"]) == {"text": "Hel"}
        assert prompter.num_cleaned == 0
        to_server.put_nowait({"type": "http.disconnect"})
        await asyncio.wait({serving})
    assert prompter.num_cleaned == 1
