"""`manage.py sweep` on the simulator: what it prints, and what it refuses."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError


def swept(*arguments: str, **options: Any) -> str:
    out = io.StringIO()
    call_command("sweep", *arguments, "--workload", "chat", "--requests", "8", "--repeats", "1", stdout=out, **options)
    return out.getvalue()


def test_a_simulated_sweep_prints_its_points_and_what_it_proposes() -> None:
    said = swept("--set-dimension", "max_running=1,8", "--simulated", "--defaults")
    assert "max_running, simulated, in force: 32" in said
    assert said.splitlines()[-1].startswith(("proposed: ", "nothing is proposed"))
    assert "Every point is simulated" in said


def test_as_json_it_is_one_object_on_one_line() -> None:
    said = swept("--set-dimension", "max_running=1,8", "--simulated", "--defaults", "--json")
    result = json.loads(said)
    assert [point["value"] for point in result["legs"][0]["points"]] == [1, 8]
    assert result["is_simulated"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--set-dimension", "nothing=1"), "dimensions must be one of"),
        (("--set-dimension", "max_running=0"), "max_running must be an integer from 1 to 1024"),
        (("--set-dimension", "max_running=1", "--margin", "2"), "margin must be"),
        (("--set-dimension", "max_running=1", "--guardrail", "ttft_p95"), "guardrail must be of the form"),
        (("--set-dimension", "max_running=1", "--simulate-first"), "give one of them"),
    ],
)
def test_what_cannot_be_swept_is_refused_in_words(arguments: tuple[str, ...], named: str) -> None:
    with pytest.raises(CommandError, match=named):
        swept(*arguments, "--simulated", "--defaults")
