"""The order `fair`: tenants are served alike, by weight, whatever they ask for."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from serving.contracts.messages import SequenceKey
from serving.engine.fairness import GENERATED_TOKEN_COST, PROMPT_TOKEN_COST
from serving.engine.plan import StepPlan
from tests.engine.core.harness import World, submit

pytestmark = [pytest.mark.heavy, pytest.mark.usefixtures("either_runner")]


def _world(**changes: object) -> World:
    tunables = {"order": "fair", "max_running": 8, "max_batch_tokens": 128, "prefix_caching": "off", **changes}
    return World(num_blocks=1024, tunables=tunables)


def _flood(
    world: World, tenant: str, count: int, *, prompt: int = 20, max_tokens: int = 20, weight: float = 1.0
) -> None:
    world.submit(
        *[
            submit(f"{tenant}{i}", prompt=prompt, max_tokens=max_tokens, ignore_eos=True, tenant=tenant, weight=weight)
            for i in range(count)
        ]
    )


def _service(plans: list[StepPlan], tenants: dict[SequenceKey, str]) -> Counter[str]:
    """What each tenant was given in these steps, each prompt's tokens being computed once."""
    given: Counter[str] = Counter()
    for plan in plans:
        for chunk in plan.chunks:
            prompt_end = min(chunk.end, chunk.num_prompt_tokens)
            given[tenants[chunk.key]] += PROMPT_TOKEN_COST * max(0, prompt_end - chunk.start)
            given[tenants[chunk.key]] += GENERATED_TOKEN_COST * chunk.samples
    return given


def _differences(world: World, one: str, other: str) -> list[float]:
    """By how much the first was served more than the second, after each step."""
    tenants = {key: request.tenant for key, request in world.ledger.submitted.items()}
    difference, differences = 0.0, [0.0]
    for plan in world.runner.plans:
        given = _service([plan], tenants)
        difference += given[one] - given[other]
        differences.append(difference)
    return differences


def _run_while_both_wait(world: World, *prefixes: str) -> None:
    """Step until one of the tenants has nothing left that waits."""
    while True:
        unheard = [key.request_id for key in world.ledger.open_keys if key not in world.ledger.started]
        if not all(any(name.startswith(prefix) for name in unheard) for prefix in prefixes):
            return
        world.step()


@pytest.mark.parametrize("budget", [128, 16])
@pytest.mark.parametrize("order", ["fair", "fcfs"])
def test_backlogged_tenants_never_differ_by_more_than_the_bound(order: str, budget: int) -> None:
    world = _world(order=order, max_batch_tokens=budget)
    # The heavy one comes first and asks for other lengths.
    _flood(world, "heavy", 300, prompt=40, max_tokens=10)
    _flood(world, "light", 100, prompt=10, max_tokens=30)
    _run_while_both_wait(world, "heavy", "light")
    differences = _differences(world, "heavy", "light")
    # Theorem 4.4 of the paper: twice the larger of the longest prompt's cost and that of all tokens in a full batch.
    bound = 2 * max(PROMPT_TOKEN_COST * 40, GENERATED_TOKEN_COST * 8 * 40)
    assert len(differences) > 200
    assert (max(differences) - min(differences) <= bound) == (order == "fair")


def test_service_is_shared_by_weight() -> None:
    world = _world()
    _flood(world, "one", 200, weight=1.0)
    _flood(world, "three", 300, weight=3.0)
    _run_while_both_wait(world, "one", "three")
    tenants = {key: request.tenant for key, request in world.ledger.submitted.items()}
    given = _service(world.runner.plans, tenants)
    assert given["one"] > 5000
    assert given["three"] / given["one"] == pytest.approx(3.0, rel=0.05)


def test_a_light_tenant_waits_for_one_place_while_a_heavy_one_floods() -> None:
    world = _world(max_running=4)
    _flood(world, "heavy", 400)
    world.step(100)
    for i in range(10):
        world.submit(submit(f"light{i}", prompt=20, max_tokens=5, ignore_eos=True, tenant="light"))
        waited = 0
        while not world.tokens(f"light{i}"):
            world.step()
            waited += 1
        # A place falls free after at most one of the heavy one's answers.
        assert waited <= 22
        world.step(20)


def test_who_comes_back_has_no_claim_from_the_time_away() -> None:
    world = _world(max_running=4)
    _flood(world, "early", 4)
    world.run()
    world.runner.plans.clear()
    _flood(world, "steady", 400)
    world.step(300)
    begun = len(world.runner.plans)
    _flood(world, "early-again", 200)  # another name, as a tenant that was never seen
    for i in range(200):
        world.submit(submit(f"back{i}", prompt=20, max_tokens=20, ignore_eos=True, tenant="early"))
    world.step(200)
    tenants = {key: request.tenant for key, request in world.ledger.submitted.items()}
    given = _service(world.runner.plans[begun:], tenants)
    assert set(given) == {"steady", "early", "early-again"}
    assert max(given.values()) <= 1.25 * min(given.values())


def test_a_tenants_own_requests_go_by_arrival() -> None:
    world = _world(max_running=1)
    for i in range(6):
        world.submit(submit(f"r{i}", max_tokens=1, priority=-i, tenant="ab"[i % 2]))
        world.now += 0.01
    world.run()
    started = [chunk.key.request_id for plan in world.runner.plans for chunk in plan.chunks if chunk.start == 0]
    for tenant in (0, 1):
        assert [name for name in started if int(name[1:]) % 2 == tenant] == [f"r{i}" for i in range(tenant, 6, 2)]


def test_the_tenant_served_most_gives_way() -> None:
    world = World(num_blocks=9, tunables={"order": "fair"})
    world.submit(submit("a", prompt=11, max_tokens=12, ignore_eos=True, tenant="greedy"))
    world.submit(submit("b", prompt=11, max_tokens=12, ignore_eos=True, tenant="greedy"))
    world.submit(submit("c", prompt=11, max_tokens=12, ignore_eos=True, tenant="modest"))
    while world.counts().preemptions_total == 0:
        world.step()
    # First come, first served would have taken the last, c.
    assert set(world.members()) == {"a", "c"}
    world.run()
    world.check_ended()


def test_decodes_beyond_the_budget_go_to_whom_was_served_least_and_take_turns() -> None:
    world = World(num_blocks=2048, tunables={"order": "fair", "max_running": 100, "max_batch_tokens": 1024})
    _flood(world, "many", 30, prompt=4, max_tokens=200)
    _flood(world, "few", 10, prompt=4, max_tokens=200)
    world.step()
    world.retune(max_batch_tokens=16)
    # What the many prompts cost is made up for first.
    world.step(20)
    turns: Counter[str] = Counter()
    for _ in range(60):
        world.step()
        turns.update(world.members())
    by_tenant: defaultdict[str, list[int]] = defaultdict(list)
    for name, count in turns.items():
        by_tenant[name.rstrip("0123456789")].append(count)
    assert sum(by_tenant["many"]) == pytest.approx(sum(by_tenant["few"]), abs=16)
    assert (len(by_tenant["many"]), len(by_tenant["few"])) == (30, 10)
    assert all(max(counts) - min(counts) <= 1 for counts in by_tenant.values())


def test_prefill_goes_first_to_the_tenant_served_least() -> None:
    world = _world(max_batch_tokens=32, max_prefill_chunk=32)
    _flood(world, "old", 1, prompt=8, max_tokens=50)
    world.step(20)
    world.submit(submit("more", prompt=64, max_tokens=1, tenant="old"))
    world.step()
    world.submit(submit("new", prompt=64, max_tokens=1, tenant="new"))
    world.step(2)
    assert world.members().get("new", 0) > world.members().get("more", 0)


def test_what_is_found_cached_is_charged_to_nobody() -> None:
    world = World(num_blocks=256, tunables={"order": "fair", "max_running": 1})
    prompt = list(range(1, 82))
    for name in ("warm", "known"):
        world.submit(submit(name, prompt=prompt, max_tokens=1, tenant="cached"))
        world.run()
    world.submit(submit("blocker", prompt=2, max_tokens=3, ignore_eos=True, tenant="other"))
    world.step()
    # Level now: each has a request waiting; the cached one's costs it next to nothing.
    world.submit(*[submit(f"c{i}", prompt=prompt, max_tokens=1, tenant="cached") for i in range(4)])
    world.submit(*[submit(f"n{i}", prompt=[100 + i, *prompt], max_tokens=1, tenant="new") for i in range(4)])
    world.run()
    started = []
    for plan in world.runner.plans:
        started += [c.key.request_id for c in plan.chunks if c.is_prefill and c.key.request_id[0] in "cn"]
    order = [name for name in dict.fromkeys(started) if name[1:].isdigit()]
    assert order.index("c3") < order.index("n2")
    world.check_ended()


def test_a_recomputation_is_charged_to_nobody() -> None:
    world = World(num_blocks=9, tunables={"order": "fair", "prefix_caching": "off", "max_running": 3})
    for name in "abc":
        world.submit(submit(name, prompt=11, max_tokens=12, ignore_eos=True, tenant=name))
    world.step()
    # Somebody who hardly pays waits all the time, so that nobody's counter is lifted.
    world.submit(*[submit(f"d{i}", prompt=2, max_tokens=4, ignore_eos=True, tenant="d", weight=1e6) for i in range(9)])
    while {"a", "b", "c"} & {key.request_id for key in world.ledger.open_keys}:
        world.step()
    assert world.counts().preemptions_total > 0
    world.retune(max_running=1)
    # All three have had the same: so the first that came goes first, though it gave way.
    world.submit(*[submit(f"next-{name}", max_tokens=1, tenant=name) for name in "cab"])
    world.run()
    begun = [chunk.key.request_id for plan in world.runner.plans for chunk in plan.chunks if chunk.start == 0]
    assert begun[-3:] == ["next-c", "next-a", "next-b"]
    world.check_ended()
