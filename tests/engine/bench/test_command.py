"""`manage.py enginebench` as scripts call it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.model
def test_prints_one_object_on_one_line_and_nothing_else(default_model: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "manage.py", "enginebench", "--workload", "w2", "--quick", "--json"],
        cwd=REPOSITORY,
        env={"FOOTPLATE_HOME": str(tmp_path), "FOOTPLATE_MODEL": str(default_model), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    told = json.loads(done.stdout)
    assert told["workload"] == "w2"
    assert told["model"] == default_model.name
    assert told["output_tokens_per_second"] > 0
    assert [each["output_tokens"] for each in told["repeats"]] == [16]
    for name in ("ttft_ms", "itl_ms"):
        assert {"p50", "p99"} <= told[name].keys()
    for name in (
        "dtype",
        "weights",
        "backend",
        "threads",
        "bandwidth_gb_per_second",
        "matmul_gflops",
        "ratio_to_limit",
    ):
        assert told[name]


@pytest.mark.parametrize(
    "wrong", [["--repeats", "0"], ["--requests", "0"], ["--prompt-tokens", "9", "8"], ["--output-tokens", "-1"]]
)
def test_refuses_what_cannot_be_measured(wrong: list[str]) -> None:
    with pytest.raises(CommandError, match="at least 1"):
        call_command("enginebench", *wrong)
