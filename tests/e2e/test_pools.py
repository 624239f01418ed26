"""Pools side by side on one machine: each with its engine, tunables, books and page, and none in another's way."""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tests.e2e.conftest import MakeStack
from tests.e2e.console import signed_in, watching
from tests.e2e.stack import REPOSITORY, Stack

pytestmark = [pytest.mark.stack, pytest.mark.model]

MODEL = "SmolLM2-135M-Instruct"


def client_of(stack: Stack) -> openai.OpenAI:
    key = stack.first_run["api_key"]
    return openai.OpenAI(base_url=f"{stack.url}/v1", api_key=key, max_retries=0, timeout=120)


@pytest.fixture
def pools_client(two_pools: Stack) -> Iterator[openai.OpenAI]:
    with client_of(two_pools) as client:
        yield client


def ask(client: openai.OpenAI, pool: str, *, max_tokens: int = 8, model: str = MODEL) -> str:
    extra = {"pool": pool, "ignore_eos": True}
    answer = client.completions.create(
        model=model, prompt="One, two, three,", max_tokens=max_tokens, temperature=0, extra_body=extra
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == max_tokens
    return answer.choices[0].text


def readiness(stack: Stack) -> tuple[int, list[str]]:
    answer = httpx.get(f"{stack.url}/readyz", timeout=10)
    return answer.status_code, answer.json()["reasons"]


def test_each_pool_has_an_engine_of_its_own_settings(two_pools: Stack) -> None:
    two_pools.wait_for_output(f"ready: {MODEL} is served by pool chat, {MODEL} is served by pool bulk")
    snapshots = {pool: two_pools.wait_for(lambda s: s["num_engines"] == 1, pool=pool) for pool in ("chat", "bulk")}
    engines = {pool: snapshot["engines"][0] for pool, snapshot in snapshots.items()}
    assert {pool: (engine["pool"], engine["model"]) for pool, engine in engines.items()} == {
        "chat": ("chat", MODEL),
        "bulk": ("bulk", MODEL),
    }
    assert engines["bulk"]["kv_blocks_total"] == engines["chat"]["kv_blocks_total"] // 2 > 0
    assert engines["chat"]["engine_id"] != engines["bulk"]["engine_id"]
    assert {path.stem for path in (two_pools.home / "logs").glob("engine*.log")} == {"engine-chat", "engine-bulk"}
    listed = httpx.get(f"{two_pools.url}/ops/v1/pools", headers=two_pools.headers, timeout=30).json()["data"]
    assert {pool["name"]: (pool["model"], pool["num_engines"]) for pool in listed} == {
        "bulk": (MODEL, 1),
        "chat": (MODEL, 1),
    }


def test_pools_of_one_model_are_one_model_to_clients(pools_client: openai.OpenAI) -> None:
    assert [model.id for model in pools_client.models.list().data] == [MODEL]


def test_each_pool_serves_and_keeps_books_of_its_own(two_pools: Stack, pools_client: openai.OpenAI) -> None:
    before = {pool: two_pools.wait_until_settled(pool)["outcomes"].get("submitted", 0) for pool in ("chat", "bulk")}
    texts = {ask(pools_client, "chat") for _ in range(3)} | {ask(pools_client, "bulk") for _ in range(2)}
    assert len(texts) == 1
    for pool, number in (("chat", 3), ("bulk", 2)):
        books = two_pools.wait_for(
            lambda s, pool=pool, number=number: (
                s["outcomes"].get("submitted", 0) == before[pool] + number
                and s["outcomes"]["waiting"] == s["outcomes"]["running"] == 0
            ),
            pool=pool,
        )["outcomes"]
        ended = {name: count for name, count in books.items() if name.startswith(("finished:", "aborted", "refused"))}
        assert sum(ended.values()) == before[pool] + number


def test_a_load_test_asks_the_pool_that_it_is_told(two_pools: Stack) -> None:
    before = {pool: two_pools.wait_until_settled(pool)["outcomes"].get("submitted", 0) for pool in ("chat", "bulk")}
    command = [sys.executable, "manage.py", "loadtest", "--pool=bulk", "--requests=3", "--output-tokens=4", "--json"]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=two_pools.environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["summary"]["total"]["num_finished"] == 3
    two_pools.wait_for(lambda s: s["outcomes"].get("submitted", 0) == before["bulk"] + 3, pool="bulk")
    assert two_pools.snapshot("chat")["outcomes"].get("submitted", 0) == before["chat"]


def test_a_tunable_of_one_pool_is_no_others(two_pools: Stack, pools_client: openai.OpenAI) -> None:
    versions = {pool: two_pools.wait_until_idle(pool)["tunables_version"] for pool in ("chat", "bulk")}
    version = two_pools.tune(pool="bulk", max_running=1)["version"]
    assert version == versions["bulk"] + 1
    two_pools.wait_for(lambda s: s["tunables_version"] == version and s["applied_by"] == 1, pool="bulk")
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(ask, pools_client, pool, max_tokens=200) for pool in ("chat", "bulk") * 4]
        assert two_pools.wait_for(lambda s: s["num_running"] == 4, pool="chat")["num_waiting"] == 0
        busy = two_pools.wait_for(lambda s: s["num_running"] + s["num_waiting"] == 4, pool="bulk")
        assert (busy["num_running"], busy["num_waiting"]) == (1, 3)
        assert len({answer.result() for answer in asked}) == 1
    chat = two_pools.snapshot("chat")
    assert (chat["tunables_version"], chat["engines"][0]["tunables_version"]) == (versions["chat"],) * 2
    values = httpx.get(f"{two_pools.url}/ops/v1/pools/chat/tunables", headers=two_pools.headers).json()["values"]
    assert values["max_running"] != 1
    back = two_pools.tune(pool="bulk", max_running=values["max_running"])["version"]
    two_pools.wait_for(lambda s: s["tunables_version"] == back and s["applied_by"] == 1, pool="bulk")


async def test_each_pool_has_its_page_and_its_frames(two_pools: Stack) -> None:
    async with signed_in(two_pools) as client:
        for pool, other in (("chat", "bulk"), ("bulk", "chat")):
            page = await (await client.get(f"/console/pools/{pool}/")).text()
            assert f'href="/console/pools/{other}/"' in page
            async with watching(client, pool) as console:
                frame = await console.wait_for(lambda m: m["type"] == "frame" and len(m["engines"]) == 1)
            assert frame["engines"][0]["kv_blocks_total"] == two_pools.snapshot(pool)["kv_blocks_total"]


def test_an_engine_that_fails_takes_only_its_own_pool_with_it(two_pools: Stack, pools_client: openai.OpenAI) -> None:
    bulk, chat = (two_pools.pid_of(f"runengine --pool={pool}") for pool in ("bulk", "chat"))
    os.kill(bulk, signal.SIGSTOP)  # what a frozen engine is to others: it beats no more
    wait_for(lambda: readiness(two_pools) == (200, ["pool bulk has no engine that is ready"]))
    assert ask(pools_client, "chat")
    os.kill(bulk, signal.SIGKILL)
    two_pools.wait_for_output("engine-bulk died")
    two_pools.wait_until_ready()
    assert ask(pools_client, "bulk") == ask(pools_client, "chat")
    assert two_pools.pid_of("runengine --pool=chat") == chat
    assert two_pools.pid_of("runengine --pool=bulk") != bulk
    assert "engine-chat died" not in two_pools.output()


def test_pools_may_serve_different_models(own_stack: MakeStack, tmp_path: Path) -> None:
    tiny = make_tiny_model(tmp_path / "tiny-llama")
    stack = own_stack(FOOTPLATE_POOLS=f"chat; small model={tiny} kv_cache_mb=8 dtype=float32 threads=1").start()
    stack.wait_for_output(f"ready: {MODEL} is served by pool chat, tiny-llama is served by pool small")
    with client_of(stack) as client:
        assert [model.id for model in client.models.list().data] == [MODEL, "tiny-llama"]
        told: dict[str, Any] = {}
        for model in (MODEL, "tiny-llama"):
            told[model] = client.chat.completions.create(
                model=model,
                messages=[{"role": "user", "content": "Hello, hello"}],
                max_tokens=5,
                temperature=0,
                extra_body={"ignore_eos": True},
            )
        assert told["tiny-llama"].usage.prompt_tokens == len("<user>Hello, hello")  # one token a letter
        assert told[MODEL].usage.prompt_tokens != told["tiny-llama"].usage.prompt_tokens
        assert {answer.usage.completion_tokens for answer in told.values()} == {5}
        with pytest.raises(openai.BadRequestError) as refused:
            ask(client, "chat", model="tiny-llama")
        assert refused.value.param == "pool"
        assert "small" in refused.value.message
    engines = {pool: stack.snapshot(pool)["engines"][0] for pool in ("chat", "small")}
    assert {pool: (engine["model"], engine["dtype"]) for pool, engine in engines.items()} == {
        "chat": (MODEL, "bfloat16"),
        "small": ("tiny-llama", "float32"),
    }
    assert stack.stop() == 0


def make_tiny_model(folder: Path) -> Path:
    """A real model of random weights, which reads and writes bytes."""
    from tests.engine.tiny_models import save_tiny_model  # loads torch and transformers

    save_tiny_model("llama", folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    return folder


def wait_for(condition: Any, *, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "never came true"
        time.sleep(0.1)
