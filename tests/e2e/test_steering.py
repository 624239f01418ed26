"""Tunables over REST, while requests run."""

from __future__ import annotations

import concurrent.futures

import httpx
import openai
import pytest

from tests.e2e.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.model]


def test_change_is_stored_applied_and_seen_while_requests_run(stack: Stack, client: openai.OpenAI, model: str) -> None:
    before = stack.snapshot()
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = [
            pool.submit(
                client.completions.create,
                model=model,
                prompt="A list of words:",
                max_tokens=120,
                temperature=0,
                extra_body={"ignore_eos": True},
            )
            for _ in range(8)
        ]
        stack.wait_for(lambda s: s["num_running"] == 8)
        version = stack.tune(max_running=2)["version"]
        assert version == before["tunables_version"] + 1
        applied = stack.wait_for(lambda s: s["tunables_version"] == version and s["applied_by"] == s["num_engines"])
        assert applied["num_engines"] == 1
        texts = {answer.result().choices[0].text for answer in answers}
    assert len(texts) == 1
    assert len(_ask_many(client, model, 6)) == 6
    stack.tune(max_running=32)
    stack.wait_until_idle()


def _ask_many(client: openai.OpenAI, model: str, count: int) -> list[str]:
    def ask(_: int) -> str:
        return (
            client.completions.create(model=model, prompt="Two words:", max_tokens=8, extra_body={"ignore_eos": True})
            .choices[0]
            .text
        )

    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        return list(pool.map(ask, range(count)))


def test_bad_value_is_refused_naming_field_value_and_bounds(stack: Stack) -> None:
    before = stack.snapshot()["tunables_version"]
    for name, value, bound in (("max_running", 0, "1024"), ("prefill_share", 2, "1"), ("mode", "fast", "static")):
        answer = httpx.patch(
            f"{stack.url}/ops/v1/pools/default/tunables",
            headers=stack.headers,
            json={"changes": {name: value}, "reason": "too far"},
        )
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["param"] == name
        assert str(value) in error["message"]
        assert bound in error["message"]
    assert stack.snapshot()["tunables_version"] == before


def test_pools_and_versions_are_listed(stack: Stack) -> None:
    pools = httpx.get(f"{stack.url}/ops/v1/pools", headers=stack.headers).json()["data"]
    assert [pool["name"] for pool in pools] == ["default"]
    version = stack.tune(batch_window_ms=5)["version"]
    stack.tune(batch_window_ms=0)
    versions = httpx.get(f"{stack.url}/ops/v1/pools/default/tunables/versions", headers=stack.headers).json()["data"]
    changed = next(entry for entry in versions if entry["version"] == version)
    assert changed["changes"] == {"batch_window_ms": [0.0, 5.0]}
    assert changed["reason"] == "a test"


def test_snapshot_shows_intervals_and_outcomes(stack: Stack, client: openai.OpenAI, model: str) -> None:
    before = stack.wait_until_settled()["outcomes"].get("finished:length", 0)
    _ask_many(client, model, 4)
    snapshot = stack.wait_for(
        lambda s: s["outcomes"].get("finished:length", 0) >= before + 4 and s["intervals"]["ttft_seconds"]["count"] >= 4
    )
    for name in ("queue_time_seconds", "ttft_seconds", "itl_seconds", "e2e_seconds"):
        figures = snapshot["intervals"][name]
        assert 0 <= figures["p50"] <= figures["p95"] <= figures["p99"]
    assert snapshot["intervals"]["ttft_seconds"]["p50"] <= snapshot["intervals"]["e2e_seconds"]["p50"]
    total = snapshot["kv_blocks_used"] + snapshot["kv_blocks_cached"] + snapshot["kv_blocks_free"]
    assert total == snapshot["kv_blocks_total"]


def test_ordinary_key_may_not_steer(stack: Stack) -> None:
    import subprocess
    import sys

    from tests.e2e.stack import REPOSITORY

    made = subprocess.run(
        [sys.executable, "manage.py", "createkey", "--scopes", "generate"],
        cwd=REPOSITORY,
        env=stack.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    headers = {"Authorization": f"Bearer {made.stdout.split()[-1]}"}
    assert httpx.get(f"{stack.url}/v1/models", headers=headers).status_code == 200
    answer = httpx.get(f"{stack.url}/ops/v1/pools", headers=headers)
    assert answer.status_code == 403
    assert httpx.get(f"{stack.url}/ops/v1/pools").status_code == 401
