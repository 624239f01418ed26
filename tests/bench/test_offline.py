"""Engines in processes of their own, with a driver that computes nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.offline import ContenderFailed, OfflineEngine
from tests.bench.places import DRIVERS, Command

DRIVER = """
import os, sys
from protocol import serve

def load():
    print("a library talks")
    os.system("echo a child talks")
    if "broken" in sys.argv:
        raise SystemExit("it cannot load")
    def generate(prompts, output_tokens):
        if not prompts:
            os._exit(3)
        print("and goes on")
        return {"output_tokens": len(prompts) * output_tokens}
    return generate

serve(load)
"""


@pytest.fixture
def command(tmp_path: Path) -> Command:
    script = tmp_path / "driver.py"
    script.write_text(DRIVER)
    return Command(arguments=[sys.executable, str(script)], environment={"PYTHONPATH": str(DRIVERS)})


@pytest.fixture
def engine(command: Command, tmp_path: Path) -> Iterator[OfflineEngine]:
    engine = OfflineEngine("toy", command, log=tmp_path / "log")
    yield engine
    engine.stop()


def test_answers_jobs_whatever_else_is_printed(engine: OfflineEngine, tmp_path: Path) -> None:
    for num_prompts in (1, 3):
        figures = engine.generate([[1, 2]] * num_prompts, output_tokens=4)
        assert figures["output_tokens"] == 4 * num_prompts
        assert figures["output_tokens_per_second"] > 0
    log = (tmp_path / "log").read_text()
    assert "a library talks" in log
    assert "a child talks" in log


def test_says_why_an_engine_did_not_start(command: Command, tmp_path: Path) -> None:
    broken = Command(arguments=[*command.arguments, "broken"], environment=command.environment)
    with pytest.raises(ContenderFailed, match="toy ended with exit status 1: it cannot load"):
        OfflineEngine("toy", broken, log=tmp_path / "log")


def test_says_that_an_engine_died(engine: OfflineEngine) -> None:
    with pytest.raises(ContenderFailed, match="toy ended with exit status 3"):
        engine.generate([], output_tokens=4)


def test_nothing_is_left_running(command: Command, tmp_path: Path) -> None:
    engine = OfflineEngine("toy", command, log=tmp_path / "log")
    engine.stop()
    assert not Path(f"/proc/{engine.pid}").exists()
