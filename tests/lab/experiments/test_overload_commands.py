"""`manage.py overload` and `manage.py threeways` on the simulator: what they print, and what they refuse."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

pytestmark = pytest.mark.heavy


def said(command: str, *arguments: str, workload: str = "bulk", **options: Any) -> str:
    out = io.StringIO()
    call_command(command, *arguments, "--workload", workload, "--simulated", "--defaults", stdout=out, **options)
    return out.getvalue()


def test_an_overload_that_passes_prints_capacity_stages_and_criteria() -> None:
    text = said("overload", "--stage", "30", "--measure", "30", "--set", "max_queue_requests=8")
    assert text.startswith("capacity ")
    assert "passed  The queue stays within max_queue_requests: 8 sequences at most" in text
    assert text.rstrip().endswith("the pool passed")


def test_an_overload_that_fails_exits_with_one() -> None:
    out = io.StringIO()
    arguments = ("--workload", "bulk", "--stage", "30", "--measure", "30", "--max-refusal-ms", "1")
    with pytest.raises(SystemExit) as caught:
        call_command(
            "overload", *arguments, "--simulated", "--defaults", "--set", "max_queue_requests=8", "--json", stdout=out
        )
    assert caught.value.code == 1
    result = json.loads(out.getvalue())
    assert not result["passed"]
    assert [each["name"] for each in result["verdicts"] if each["judged"] == "failed"] == ["fast_refusals"]


def test_a_comparison_prints_the_ways_side_by_side_and_what_they_cost() -> None:
    text = said("threeways", "--duration", "20", "--repeats", "2")
    assert text.split()[:3] == ["static", "windowed", "continuous"]
    assert "Static batching against continuous batching" in text


def test_a_comparison_as_json_is_one_object_on_one_line() -> None:
    text = said("threeways", "--duration", "10", "--repeats", "1", "--json")
    assert text.count("\n") <= 1
    assert [each["name"] for each in json.loads(text)["ways"]] == ["static", "windowed", "continuous"]


@pytest.mark.parametrize(
    ("command", "arguments", "named"),
    [
        ("overload", ("--multiples", "2,x"), "multiples must be numbers"),
        ("overload", ("--multiples", "0.5"), "multiples must be above 1"),
        ("overload", ("--min-goodput-ratio", "2"), "min_goodput_ratio must be a number from 0 to 1"),
        ("threeways", ("--repeats", "0"), "repeats must be a whole number"),
        ("threeways", ("--window", "0"), "window_ms must be a number from 1"),
        ("threeways", ("--static-window", "9000", "--set", "max_queue_wait_ms=5000"), "below the pool's"),
    ],
)
def test_what_cannot_be_played_is_refused_in_words(command: str, arguments: tuple[str, ...], named: str) -> None:
    with pytest.raises(CommandError, match=named):
        said(command, *arguments)
