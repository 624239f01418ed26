"""A whole Footplate as the bench runs it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench.contenders import chosen
from tests.bench.entrants import Plan, run_servers
from tests.bench.places import Places
from tests.bench.rounds import Findings
from tests.bench.servers import FootplateServer

pytestmark = [pytest.mark.stack, pytest.mark.model]


def test_serves_the_workloads_and_tells_what_a_token_costs(default_model: Path, tmp_path: Path) -> None:
    places = Places(peers=tmp_path / "peers", model=default_model, scratch=tmp_path)
    findings = Findings()
    run_servers(Plan(workloads=["w2", "w5"], repeats=1, quick=True), chosen([]), places, findings, say=lambda _: None)
    assert findings.problems == {}
    measured = {(each.contender, each.workload): each.figures for each in findings.measurements}
    assert list(measured) == [
        ("footplate", "w2"),
        ("footplate, preset chat", "w5"),
        ("footplate, preset bulk", "w5"),
    ]
    for figures in measured.values():
        assert figures["output_tokens_per_second"] > 0
        assert list(figures["core_us_per_token"]) == ["web", "engine", "valkey", "others", "client", "all"]
        assert figures["core_us_per_token"]["engine"] > 0
    assert findings.idle_core_ratio.keys() == {"footplate"}


def test_runs_a_preset_once_its_engine_does_and_leaves_nothing_behind(default_model: Path, tmp_path: Path) -> None:
    places = Places(peers=tmp_path / "peers", model=default_model, scratch=tmp_path)
    server = FootplateServer(chosen([])[0], places)
    try:
        server.tune("chat")
        server.tune("chat")  # changes nothing, and is no error
        server.tune("mixed")
        pids = [pid for role in server.roles().values() for pid in role]
        assert all(server.roles()[role] for role in ("web", "engine", "valkey", "others"))
    finally:
        server.stop()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
