"""What pages show of tunables and versions."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

from dashboard.presenters import present_levers, present_versions, present_windows
from serving.contracts.tunables import TunableSpec, describe


@dataclasses.dataclass
class Stored:
    number: int
    changes: dict[str, Any]
    values: dict[str, Any] = dataclasses.field(default_factory=dict)
    reason: str = ""
    author: str = "ann"
    created_at: datetime = datetime(2026, 1, 2, tzinfo=UTC)


def test_every_tunable_has_one_lever_under_a_heading() -> None:
    groups = present_levers(describe())
    assert [group.title for group in groups] == [
        *("Batch", "Prompts and streams", "Queue", "Objectives", "KV memory", "Speculation")
    ]
    assert all(group.trade.endswith(".") for group in groups)
    names = [lever.name for group in groups for lever in group.levers]
    assert sorted(names) == sorted(spec.name for spec in describe())


def test_a_tunable_that_nobody_grouped_is_among_the_others() -> None:
    stray = TunableSpec(
        name="ttft_slo_ms", kind="number", default=5.0, unit="ms", effect="next step", help="A goal", low=0, high=9e9
    )
    last = present_levers([*describe(), stray])[-1]
    assert (last.title, [lever.name for lever in last.levers]) == ("Other", ["ttft_slo_ms"])
    (lever,) = last.levers
    assert (lever.label, lever.bounds) == ("TTFT SLO", "0 – 9,000,000,000")
    assert (lever.low, lever.high, lever.step) == ("0", "9000000000", "1")


def test_levers_say_what_a_control_needs() -> None:
    levers = {lever.name: lever for group in present_levers(describe()) for lever in group.levers}
    running = levers["max_running"]
    assert (running.label, running.kind, running.unit) == ("Max running", "integer", "sequences")
    assert (running.low, running.high, running.step, running.bounds) == ("1", "1024", "1", "1 – 1,024")
    ratio = levers["kv_limit_ratio"]
    assert (ratio.label, ratio.low, ratio.high, ratio.step) == ("KV limit", "0.01", "1", "0.005")
    mode = levers["mode"]
    assert (mode.choices, mode.low, mode.step) == (("continuous", "static"), "", "")
    assert levers["max_queue_tokens"].high == "100000000"


def test_a_lever_that_names_a_pool_suggests_those_that_would_do_and_no_other_lever_does() -> None:
    groups = present_levers(describe(), pools=["bulk", "chat"])
    suggesting = [lever for group in groups for lever in group.levers if lever.suggestions]
    (lever,) = suggesting
    assert (lever.name, lever.label, lever.kind) == ("long_prompt_pool", "Long prompt pool", "name")
    assert (lever.bounds, lever.suggestions) == ("A pool's name, or empty", ("bulk", "chat"))
    assert (lever.low, lever.high, lever.step, lever.unit, lever.choices) == ("", "", "", "", ())


def test_versions_show_their_difference_with_units() -> None:
    newest, oldest = present_versions(
        [
            Stored(2, {"max_running": [32, 1000], "kv_limit_ratio": [1.0, 0.5], "gone": ["a", "b"], "name": ["", "b"]}),
            Stored(1, {}),
        ],
        in_force=2,
    )
    shown = [(change.name, change.old, change.new, change.unit) for change in newest.changes]
    assert shown == [
        ("max_running", "32", "1,000", "sequences"),
        ("kv_limit_ratio", "1", "0.5", ""),
        ("gone", "a", "b", ""),
        ("name", "(empty)", "b", ""),
    ]
    assert (newest.is_in_force, oldest.is_in_force, oldest.changes) == (True, False, ())


def test_windows_are_named_in_their_order() -> None:
    assert present_windows((10, 60, 300, 900)) == ("10 s", "1 m", "5 m", "15 m")
