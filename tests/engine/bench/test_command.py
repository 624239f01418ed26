"""`manage.py enginebench` as scripts call it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.core.management import CommandError, call_command

from serving.config.pools import PoolSettings

REPOSITORY = Path(__file__).resolve().parents[3]


def _enginebench(*arguments: str, home: Path, model: Path) -> str:
    """What the command prints, as a process of its own."""
    done = subprocess.run(
        [sys.executable, "manage.py", "enginebench", *arguments],
        cwd=REPOSITORY,
        env={"FOOTPLATE_HOME": str(home), "FOOTPLATE_MODEL": str(model), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.model
def test_prints_one_object_on_one_line_and_nothing_else(
    default_model: Path, tmp_path: Path, kernels_folder: Path
) -> None:
    (tmp_path / "kernels").symlink_to(kernels_folder)
    output = _enginebench("--workload", "w2", "--quick", "--json", home=tmp_path, model=default_model)
    assert output.count("\n") == 1
    told = json.loads(output)
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


@pytest.mark.model
def test_tells_how_exact_each_weight_format_is(default_model: Path, tmp_path: Path, kernels_folder: Path) -> None:
    text = tmp_path / "text"
    text.write_text("A steam engine turns heat into motion. Its driver watches pressure, water and fire, " * 3)
    (tmp_path / "kernels").symlink_to(kernels_folder)
    output = _enginebench("--quality", str(text), "--backend", "cpu", "--json", home=tmp_path, model=default_model)
    told = {each["weights"]: each for each in map(json.loads, output.splitlines())}
    assert list(told) == ["bfloat16", "int8", "int4", "w8a8"]
    assert all(each["backend"] == "cpu" and each["num_tokens"] > 40 for each in told.values())
    divergences = {weights: each["kl_divergence"] for weights, each in told.items()}
    assert 0 < divergences["bfloat16"] < divergences["int8"] < divergences["w8a8"] < 0.05
    assert told["bfloat16"]["top1_agreement"] > 0.95


@pytest.mark.parametrize(
    ("content", "said"), [(None, "cannot be read"), (b"\xff\xfe\xff", "cannot be read"), (b"", "is empty")]
)
def test_a_text_that_cannot_be_measured_is_refused(content: bytes | None, said: str, tmp_path: Path) -> None:
    text = tmp_path / "text"
    if content is not None:
        text.write_bytes(content)
    with pytest.raises(CommandError, match=f"--quality: .*{said}"):
        call_command("enginebench", "--quality", str(text))


def test_quality_without_a_model_is_refused(tmp_path: Path, settings: LazySettings) -> None:
    settings.FOOTPLATE_POOLS = {settings.FOOTPLATE_POOL: PoolSettings(name="default", model=tmp_path / "none")}
    (tmp_path / "text").write_text("some words")
    with pytest.raises(CommandError, match=r"--quality: the model has no .*tokenizer\.json"):
        call_command("enginebench", "--quality", str(tmp_path / "text"))
