"""Two pools of one model on one machine, and which of them a request runs in."""

from __future__ import annotations

from typing import Any

import httpx
import openai
import pytest

from tests.e2e.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.model]

MODEL = "SmolLM2-135M-Instruct"
SHORT = "Once upon a time"
LONG = "The driver looked at the gauges, and opened the regulator a little more. " * 20
"""About 300 tokens."""


def ask(stack: Stack, prompt: str, *, key: str | None = None, stream: bool = False, **fields: Any) -> tuple[str, str]:
    """The pool that answered, and the text."""
    api_key = stack.first_run["api_key"] if key is None else key
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=api_key, max_retries=0, timeout=120) as client:
        raw = client.completions.with_raw_response.create(
            model=MODEL, prompt=prompt, max_tokens=8, temperature=0, stream=stream, extra_body=fields
        )
        parsed = raw.parse()
        text = "".join(c.choices[0].text for c in parsed) if stream else parsed.choices[0].text  # type: ignore[attr-defined,union-attr]
        return raw.headers["x-footplate-pool"], text


def tune(stack: Stack, pool: str, **changes: Any) -> None:
    version = stack.tune(pool=pool, **changes)["version"]
    stack.wait_for(lambda s: s["tunables_version"] == version and s["applied_by"] == 1, pool=pool)


def new_key(stack: Stack, **tenant: Any) -> tuple[int, str]:
    """Id and key of a new tenant."""
    with httpx.Client(base_url=f"{stack.url}/ops/v1", headers=stack.headers, timeout=30) as client:
        made = client.post("/tenants", json=tenant)
        assert made.status_code == 201, made.text
        key = client.post(f"/tenants/{made.json()['id']}/keys", json={"scopes": ["generate"]})
        return made.json()["id"], key.json()["key"]


def test_long_prompts_move_to_the_bulk_pool_as_soon_as_the_lever_says_so(two_pools: Stack) -> None:
    assert ask(two_pools, LONG)[0] == "chat"
    tune(two_pools, "chat", long_prompt_pool="bulk", long_prompt_tokens=200)
    for stream in (False, True):
        pool, text = ask(two_pools, LONG, stream=stream)
        assert pool == "bulk"
        assert ask(two_pools, LONG, stream=stream, pool="chat") == ("chat", text)
        assert ask(two_pools, SHORT, stream=stream)[0] == "chat"
    tune(two_pools, "chat", long_prompt_pool="", long_prompt_tokens=1024)
    assert ask(two_pools, LONG)[0] == "chat"


@pytest.mark.parametrize("name", ["chat", "none"])
def test_lever_that_names_no_other_pool_is_refused(two_pools: Stack, name: str) -> None:
    answer = httpx.patch(
        f"{two_pools.url}/ops/v1/pools/chat/tunables",
        headers=two_pools.headers,
        json={"changes": {"long_prompt_pool": name}},
        timeout=30,
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "long_prompt_pool"
    assert "bulk" in answer.json()["error"]["message"]


def test_a_tenant_runs_in_its_own_pools_and_no_others(two_pools: Stack) -> None:
    tenant_id, key = new_key(two_pools, name="night shift", pools=["bulk"])
    assert ask(two_pools, SHORT, key=key)[0] == "bulk"
    assert ask(two_pools, SHORT, key=key, pool="bulk")[0] == "bulk"
    with pytest.raises(openai.BadRequestError) as caught:
        ask(two_pools, SHORT, key=key, pool="chat")
    assert caught.value.param == "pool"
    changed = httpx.patch(
        f"{two_pools.url}/ops/v1/tenants/{tenant_id}", headers=two_pools.headers, json={"pools": ["chat", "bulk"]}
    )
    assert changed.status_code == 200
    assert ask(two_pools, SHORT, key=key)[0] == "chat"
