"""`/metrics` of a whole Footplate, read as Prometheus reads it."""

from __future__ import annotations

import time
from collections.abc import Callable

import httpx
import openai
import pytest

from tests.e2e.stack import Stack, open_stream
from tests.telemetry.scraping import Scrape, labels_of, scraped, sum_of
from tests.telemetry.test_board import EXPRESSIONS, names_in

pytestmark = [pytest.mark.stack, pytest.mark.model]

MODEL = "SmolLM2-135M-Instruct"


def scrape(stack: Stack, **parameters: str) -> Scrape:
    answer = httpx.get(f"{stack.url}/metrics", params=parameters, headers=stack.headers, timeout=30)
    assert answer.status_code == 200, answer.text
    return scraped(answer.text)


def scrape_until(stack: Stack, condition: Callable[[Scrape], bool], *, within_seconds: float = 60) -> Scrape:
    """The first scrape that meets `condition`; at every one before, the books balance."""
    deadline = time.monotonic() + within_seconds
    while True:
        found = scrape(stack)
        assert_balanced(found)
        if condition(found):
            return found
        assert time.monotonic() < deadline, f"never came true: {found}"
        time.sleep(0.05)


def assert_balanced(found: Scrape) -> None:
    """C89: submitted = finished + aborted + refused + failed + waiting + running."""
    ended = sum_of(found, "footplate_requests_ended_total")
    in_flight = sum_of(found, "footplate_requests_in_flight")
    assert sum_of(found, "footplate_requests_submitted_total") == ended + in_flight


def test_what_clients_were_served_is_what_is_counted(stack: Stack, client: openai.OpenAI, model: str) -> None:
    """C89: requests, tokens and first tokens agree with what clients were told, aborted ones included."""
    stack.wait_until_idle()
    before = scrape(stack)
    usages = [
        client.completions.create(model=model, prompt="One, two,", max_tokens=12, extra_body={"ignore_eos": True}).usage
        for _ in range(3)
    ]
    connections = [open_stream(stack) for _ in range(3)]
    for connection in connections:
        while b"content" not in connection.recv(4096):
            pass
        connection.close()
    aborted = sum_of(before, "footplate_requests_ended_total", outcome="aborted") + 3
    after = scrape_until(stack, lambda s: sum_of(s, "footplate_requests_ended_total", outcome="aborted") == aborted)

    def grown(name: str, **labels: str) -> float:
        return sum_of(after, name, **labels) - sum_of(before, name, **labels)

    assert grown("footplate_requests_submitted_total", pool="default", model=MODEL) == 6
    assert grown("footplate_requests_ended_total", outcome="finished", code="length") == 3
    for interval, count in (("queue", 6), ("ttft", 6), ("e2e", 3)):
        assert grown(f"footplate_request_{interval}_seconds_count") == count
    assert all(usage is not None for usage in usages)
    told = sum(usage.completion_tokens for usage in usages if usage is not None)
    # What the three that left had been sent, at least a token each, is in the tokens too, and its gaps in the ITL.
    assert told == 36
    assert grown("footplate_request_generated_tokens_total") >= told + 3
    assert grown("footplate_request_itl_seconds_count") == grown("footplate_request_generated_tokens_total") - 6
    made = sum_of(before, "footplate_engine_generated_tokens_total") + told + 3
    scrape_until(stack, lambda s: sum_of(s, "footplate_engine_generated_tokens_total") >= made)  # with a heartbeat
    ended = sum_of(after, "footplate_requests_ended_total")
    stack.wait_for(lambda s: sum(s["outcomes"][name] for name in s["outcomes"] if name.split(":")[0] in _ENDS) == ended)


_ENDS = {"finished", "aborted", "refused", "failed"}


def test_gauges_fall_to_nought_after_a_mass_abort(stack: Stack) -> None:
    """C88: streams that all go in one moment, and no request after them; the books balance all the while (C89)."""
    stack.wait_until_idle()
    before = sum_of(scrape(stack), "footplate_requests_ended_total", outcome="aborted")
    connections = [open_stream(stack) for _ in range(50)]
    busy = scrape_until(
        stack,
        lambda s: sum_of(s, "footplate_requests_in_flight") == 50 and sum_of(s, "footplate_pool_running_sequences") > 0,
    )
    assert sum_of(busy, "footplate_pool_kv_used_ratio") > 0
    for connection in connections:
        connection.close()
    gauges = ("pool_running_sequences", "pool_waiting_sequences", "pool_permits_requests", "pool_kv_used_ratio")
    idle = scrape_until(
        stack,
        lambda s: not any(sum_of(s, f"footplate_{name}") for name in (*gauges, "requests_in_flight")),
    )
    assert sum_of(idle, "footplate_requests_ended_total", outcome="aborted") == before + 50
    assert sum_of(scrape(stack, names="vllm"), "vllm:num_requests_running") == 0


def test_everything_that_the_board_asks_for_is_told(stack: Stack, client: openai.OpenAI, model: str) -> None:
    client.completions.create(model=model, prompt="Hello", max_tokens=2)
    httpx.get(f"{stack.url}/nowhere", timeout=10)
    told = {name for name, _ in scrape(stack)}
    asked = {name for expression in EXPRESSIONS for name in names_in(expression)}
    assert {name for name in asked if "accelerator" not in name} <= told


def test_tells_of_engine_and_monitor_and_of_a_changed_tunable(stack: Stack) -> None:
    found = scrape(stack)
    assert sum_of(found, "footplate_redis_up") == sum_of(found, "footplate_monitor_up") == 1
    (info,) = labels_of(found, "footplate_engine_info")
    assert (info["model"], info["device"], info["pool"]) == (MODEL, "cpu", "default")
    assert sum_of(found, "footplate_engine_ready", engine=info["engine"]) == 1
    try:
        version = stack.tune(max_running=7)["version"]
        found = scrape_until(
            stack,
            lambda s: (
                sum_of(s, "footplate_engine_tunables_version") == version
                and sum_of(s, "footplate_pool_tunables_applied_engines") == 1
            ),
        )
        assert sum_of(found, "footplate_pool_tunables_version") == version
        assert sum_of(found, "footplate_pool_max_running_sequences") == 7
    finally:
        stack.tune(max_running=32)
