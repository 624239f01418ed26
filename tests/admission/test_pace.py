"""What is measured of engines, and when it counts."""

from __future__ import annotations

from typing import Any

import pytest

from serving.admission.pace import PaceMeter
from serving.contracts.ids import EngineId, PoolName
from serving.contracts.messages import EngineSnapshot

MAX_RUNNING = 4


class Engine:
    """Owns an engine's figures."""

    def __init__(self, name: str = "engine") -> None:
        self.facts: dict[str, Any] = {"engine_id": EngineId(name), "uptime_seconds": 10.0}

    def after(self, seconds: float, *, prompt_tokens: int = 0, left: int = 0, **state: int) -> EngineSnapshot:
        """The engine's state so much later, with so much done meanwhile."""
        self.facts["uptime_seconds"] += seconds
        for name, amount in (("prompt_tokens_total", prompt_tokens), ("left_total", left)):
            self.facts[name] = self.facts.get(name, 0) + amount
        self.facts |= state
        return snapshot(**self.facts)


def snapshot(**facts: Any) -> EngineSnapshot:
    blank: dict[str, Any] = {"name": "e", "pool": PoolName("default"), "model": "m", "state": "ready", "device": "cpu"}
    blank |= {"dtype": "none", "max_model_len": 1024, "last_step_ms": 1.0, "busy_ratio": 1.0, "rss_bytes": 1}
    for field in EngineSnapshot.__struct_fields__:
        if field.startswith(("num_", "kv_", "block_", "tunables_")) or field.endswith("_total"):
            blank.setdefault(field, 0)
    return EngineSnapshot(**(blank | facts))


def look(meter: PaceMeter, *snapshots: EngineSnapshot) -> None:
    meter.look(snapshots, max_running=MAX_RUNNING)


def test_rate_of_computing_is_measured_while_some_wait_though_places_are_free() -> None:
    meter, engine = PaceMeter(), Engine()
    for _ in range(10):
        look(meter, engine.after(0.25, prompt_tokens=100, num_waiting=3, num_running=2))
    assert meter.pace.prompt_tokens_per_second == pytest.approx(400)
    assert meter.pace.sequences_per_second is None
    assert meter.pace.num_free_places == 2


def test_rate_of_leaving_is_measured_while_all_places_are_taken() -> None:
    meter, engine = PaceMeter(), Engine()
    for _ in range(10):
        look(meter, engine.after(0.5, prompt_tokens=100, left=1, num_waiting=3, num_running=4))
    assert meter.pace.sequences_per_second == pytest.approx(2)
    assert meter.pace.prompt_tokens_per_second is None
    assert (meter.pace.num_free_places, meter.pace.num_waiting) == (0, 3)


def test_time_in_which_nobody_waits_tells_nothing() -> None:
    meter, engine = PaceMeter(), Engine()
    for _ in range(40):
        look(meter, engine.after(0.25, prompt_tokens=1, left=1, num_running=3))
    assert meter.pace.prompt_tokens_per_second is None
    assert meter.pace.sequences_per_second is None


def test_sequences_that_take_minutes_have_a_rate_as_well() -> None:
    meter, engine = PaceMeter(), Engine()
    for index in range(400):
        look(meter, engine.after(1.0, left=int(index % 40 == 39), num_running=4, num_waiting=1))
    assert meter.pace.sequences_per_second == pytest.approx(1 / 40, rel=0.4)


def test_few_ends_are_no_rate_yet() -> None:
    meter, engine = PaceMeter(), Engine()
    for _ in range(8):
        look(meter, engine.after(0.25, num_running=4, num_waiting=1))
    look(meter, engine.after(0.25, left=2, num_running=4, num_waiting=1))
    assert meter.pace.sequences_per_second is None


def test_places_that_stand_empty_between_two_steps_are_taken() -> None:
    meter, engine = PaceMeter(), Engine()
    for index in range(20):
        look(meter, engine.after(0.5, prompt_tokens=100, left=1, num_waiting=3, num_running=4 - index % 2))
    assert meter.pace.sequences_per_second == pytest.approx(2)
    assert meter.pace.prompt_tokens_per_second is None


@pytest.mark.parametrize(("num_running", "is_measured"), [(14, True), (13, False), (0, False)])
def test_of_many_places_a_few_may_be_empty_though_nobody_is_known_to_wait(num_running: int, is_measured: bool) -> None:
    """With several engines those that wait are in the inbox, and an engine knows nothing of them."""
    meter, engine = PaceMeter(), Engine()
    for _ in range(10):
        meter.look([engine.after(0.5, left=2, num_running=num_running)], max_running=16)
    assert (meter.pace.sequences_per_second is not None) == is_measured


@pytest.mark.parametrize("num_running", [0, 1])
def test_a_single_place_is_not_full_while_nobody_wants_it(num_running: int) -> None:
    meter, engine = PaceMeter(), Engine()
    for index in range(20):
        meter.look([engine.after(0.5, left=1, num_running=num_running * (index % 2))], max_running=1)
    assert meter.pace.sequences_per_second is None


def test_what_changed_is_learnt_and_what_is_known_outlives_idle_time() -> None:
    meter, engine = PaceMeter(), Engine()
    for _ in range(20):
        look(meter, engine.after(0.5, left=4, num_running=4, num_waiting=1))
    assert meter.pace.sequences_per_second == pytest.approx(8)
    for _ in range(240):
        look(meter, engine.after(0.5, left=1, num_running=4, num_waiting=1))
    assert meter.pace.sequences_per_second == pytest.approx(2, rel=0.1)
    for _ in range(600):
        look(meter, engine.after(0.5, num_running=0, num_waiting=0))
    assert meter.pace.sequences_per_second == pytest.approx(2, rel=0.1)
    meter.look([engine.after(0.5)], max_running=MAX_RUNNING + 1)
    assert meter.pace.sequences_per_second is None


def test_engines_add_up_and_a_new_one_is_like_the_others() -> None:
    meter, one, other = PaceMeter(), Engine("one"), Engine("other")
    for _ in range(10):
        look(meter, one.after(0.5, left=2, num_running=4), other.after(0.5, left=4, num_running=4))
    assert meter.pace.sequences_per_second == pytest.approx(12)
    new = Engine("new").after(1.0)
    look(meter, one.after(0.5, left=2, num_running=4), other.after(0.5, left=4, num_running=4), new)
    assert meter.pace.sequences_per_second == pytest.approx(18)
    assert meter.pace.num_free_places == 4
    look(meter, one.after(0.5, left=2, num_running=4))
    assert meter.pace.sequences_per_second == pytest.approx(4)


def test_same_snapshot_read_again_changes_nothing() -> None:
    meter, engine = PaceMeter(), Engine()
    for _ in range(10):
        seen = engine.after(0.5, left=2, num_running=4)
        look(meter, seen)
        look(meter, seen)
    assert meter.pace.sequences_per_second == pytest.approx(4)
