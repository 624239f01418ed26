"""Who takes part, and what is said of those who cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.bench import __main__ as bench
from tests.bench import install
from tests.bench.contenders import CONTENDERS, OURS, chosen
from tests.bench.places import REPOSITORY, Places
from tests.bench.report import table
from tests.bench.rounds import Findings


@pytest.fixture
def places(tmp_path: Path) -> Places:
    for name in ("peers", "model", "scratch"):
        (tmp_path / name).mkdir()
    return Places(peers=tmp_path / "peers", model=tmp_path / "model", scratch=tmp_path / "scratch")


def test_where_nothing_is_installed_every_peer_is_missing_by_name(places: Places) -> None:
    missing = {contender.name: contender.missing(places) for contender in CONTENDERS}
    assert [name for name, needs in missing.items() if not needs] == [
        "footplate",
        "footplate-int8",
        "footplate-int4",
        "footplate-w8a8",
        "footplate-torch",
        "transformers",
    ]
    assert missing["vllm"] == [places.vllm_python]
    assert missing["llama.cpp-q4_1"] == [places.llama_server, places.q4_1]


def test_what_is_missing_stands_in_the_table(places: Places) -> None:
    findings = Findings(missing={"vllm": ["/nowhere/python"]})
    findings.note_problem("transformers", "engine", "it ended")
    assert table(findings).splitlines() == [
        "missing: vllm (no /nowhere/python)",
        "not measured: transformers (engine): it ended",
    ]


def test_what_is_installed_is_found_again_where_the_installer_puts_it(places: Places) -> None:
    for path in (places.vllm_python, places.openvino_python, places.llama_server, places.q4_1, places.f16):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert all(not contender.missing(places) for contender in CONTENDERS)
    for step in install.STEPS.values():
        step(places)  # nothing is left to do: no process is started
    assert places.q4_1.stat().st_size == 0


def test_footplate_always_takes_part_and_an_unknown_peer_never() -> None:
    assert [contender.name for contender in chosen([])] == [OURS]
    assert [contender.name for contender in chosen(["vllm"])] == [OURS, "vllm"]
    assert chosen(None) == CONTENDERS
    with pytest.raises(ValueError, match=r"there is no peer vlm; there are: .*vllm"):
        chosen(["vlm"])


def test_every_command_gives_all_engines_the_same_batch_and_loopback_alone(places: Places) -> None:
    for contender in CONTENDERS:
        commands = [contender.offline(places)] if contender.offline else []
        commands += [contender.server(places, 4321)] if contender.server else []
        assert commands
        for command in commands:
            assert "32" in command.arguments
        if contender.server:
            assert commands[-1].arguments[commands[-1].arguments.index("--host") + 1] == "127.0.0.1"
            assert "4321" in commands[-1].arguments


@pytest.mark.heavy
def test_a_wrong_workload_is_refused_before_anything_starts() -> None:
    command = [sys.executable, "-m", "tests.bench", "--workloads", "w9"]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "there is no workload w9; there are: step, w1, w2" in done.stderr


def test_the_decode_step_is_a_workload_of_the_bench() -> None:
    assert bench.WORKLOADS == ("step", "w1", "w2", "w3", "w4", "w5")


def test_tile_configuration_is_kept_once_however_often_it_is_mended(tmp_path: Path) -> None:
    source = tmp_path / "ggml/src/ggml-cpu/amx/mmq.cpp"
    source.parent.mkdir(parents=True)
    source.write_text("    tc.rows[7] = 16;\n\n    _tile_loadconfig(&tc);\n")
    for _ in range(2):
        install.keep_tile_configuration(tmp_path)
    assert source.read_text().count('"memory"') == 1
    assert source.read_text().index('"memory"') < source.read_text().index("_tile_loadconfig")
