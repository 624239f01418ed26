"""Static batches: formed whole, run to their end, and what a rectangular one would have wasted."""

from __future__ import annotations

from tests.engine.core.harness import World, submit


def _static(**tunables: object) -> World:
    return World(num_blocks=512, tunables={"mode": "static", **tunables})


def test_a_batch_runs_to_its_end_before_the_next_forms() -> None:
    world = _static(max_running=2)
    world.submit(*[submit(name, max_tokens=n, ignore_eos=True) for name, n in zip("abcd", (5, 2, 3, 1), strict=True)])
    seen = []
    while world.engine.has_work:
        world.step()
        seen.append("".join(sorted(world.members())))
    assert seen == ["ab", "ab", "a", "a", "a", "cd", "c", "c"]
    world.check_ended()


def test_counts_padded_prompts_and_idle_slots() -> None:
    world = _static(max_running=3)
    world.submit(
        submit("a", prompt=10, max_tokens=4, ignore_eos=True),
        submit("b", prompt=4, max_tokens=2, ignore_eos=True),
        submit("c", prompt=7, max_tokens=1),
    )
    padded = []
    while world.engine.has_work:
        world.step()
        padded.append(world.plan.num_padded_tokens)
    # Prompts padded to 10; then c's slot is idle, then b's too.
    assert padded == [6 + 3, 1, 2, 2]
    assert world.counts().padded_tokens_total == 14
    assert world.counts().idle_slot_steps_total == 5


def test_continuous_mode_pads_nothing() -> None:
    world = World()
    world.submit(submit("a", prompt=10, max_tokens=4), submit("b", prompt=4, max_tokens=2))
    world.run()
    assert world.counts().padded_tokens_total == 0


def test_a_batch_forms_whole_though_the_budget_computes_it_in_parts() -> None:
    world = _static(max_running=4, max_batch_tokens=16)
    world.submit(*[submit(name, prompt=12, max_tokens=3, ignore_eos=True) for name in "abcde"])
    world.step()
    assert (world.counts().num_running, world.counts().num_waiting) == (4, 1)
    assert world.plan.num_tokens == 16
    world.run()
    world.check_ended()


def test_the_batch_takes_back_its_own_preempted_member_and_nobody_else() -> None:
    world = World(num_blocks=12, tunables={"mode": "static", "max_running": 3})
    world.submit(
        submit("a", prompt=14, max_tokens=30, ignore_eos=True),
        submit("b", prompt=14, max_tokens=5, ignore_eos=True),
        submit("c", prompt=14, max_tokens=4, ignore_eos=True),
        submit("late", prompt=2, max_tokens=1),
    )
    seen: list[str] = []
    while world.engine.has_work:
        world.step()
        members = "".join(sorted(world.members()))
        if members not in seen[-1:]:
            seen.append(members)
    assert seen == ["abc", "ab", "ac", "a", "late"]
    assert world.counts().preemptions_total == 1
    world.check_ended()


def test_changing_to_static_lets_the_running_end_first(world: World) -> None:
    world.submit(submit("a", max_tokens=6, ignore_eos=True))
    world.step()
    world.retune(mode="static")
    world.submit(submit("b", max_tokens=6, ignore_eos=True))
    world.step(5)
    assert world.tokens("b") == []
    assert world.counts().padded_tokens_total == 0
    world.run()
    world.check_ended()


def test_changing_to_continuous_fills_idle_slots_at_once() -> None:
    world = _static(max_running=2)
    world.submit(submit("a", max_tokens=9, ignore_eos=True), submit("b", max_tokens=1), submit("c", max_tokens=2))
    world.step(2)
    assert world.tokens("c") == []
    world.retune(mode="continuous")
    world.step()
    assert len(world.tokens("c")) == 1
    assert world.plan.num_padded_tokens == 0


def test_choices_of_one_prompt_form_a_batch_together() -> None:
    world = _static(max_running=4)
    world.submit(*[submit("n", prompt=20, choice=i, seed=i, max_tokens=3, ignore_eos=True) for i in range(4)])
    world.step()
    assert world.counts().num_running == 4
    world.run()
    world.check_ended()
