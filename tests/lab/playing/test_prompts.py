"""What plays of the same workload ask: requests of the same shape, and never the same texts."""

from __future__ import annotations

import itertools

from serving.lab.playing.prompts import PromptMaker
from serving.lab.workloads.arrivals import ClosedLoop
from serving.lab.workloads.drawing import plan_requests
from serving.lab.workloads.workload import PlannedRequest, SharedPrefixes
from tests.lab.playing.answering import Server, play
from tests.lab.playing.answering import workload as played_workload
from tests.lab.workloads.shapes import request_class, workload


def planned() -> list[PlannedRequest]:
    prefixes = SharedPrefixes(share=1.0, tokens=40, count=1)
    some = workload(classes=(request_class(prefixes=prefixes),), num_requests=5)
    return list(plan_requests(some))


def prompts_of(salt: str, *, prompts: str = "tokens") -> list[list[int] | str]:
    maker = PromptMaker(seed=1, prompts="tokens" if prompts == "tokens" else "text", salt=salt)
    return [maker.prompt(each) for each in planned()]


def test_two_plays_of_a_workload_ask_nothing_that_a_server_still_has() -> None:
    first, second = prompts_of("one"), prompts_of("two")
    for mine, other, plan in zip(first, second, planned(), strict=True):
        assert len(mine) == len(other) == plan.num_prompt_tokens
        assert mine[:16] != other[:16]
    assert prompts_of("one", prompts="text") != prompts_of("two", prompts="text")


def test_what_is_shared_is_shared_within_a_play() -> None:
    for mine, other in itertools.combinations(prompts_of("one"), 2):
        assert mine[:40] == other[:40]
        assert mine[40:48] != other[40:48]


def test_the_same_salt_and_seed_ask_the_same() -> None:
    assert prompts_of("one") == prompts_of("one")


async def test_a_player_asks_the_same_lengths_in_other_words_each_time(server: Server) -> None:
    for _ in range(2):
        await play(server, played_workload(ClosedLoop(1), count=3))
    first, second = server.bodies[:3], server.bodies[3:]
    assert [len(body["prompt"]) for body in first] == [len(body["prompt"]) for body in second]
    for mine, other in zip(first, second, strict=True):
        assert mine["prompt"] != other["prompt"]
