"""`make bench`: Footplate beside every installed peer, in turn in one run. `--help` lists the options."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from serving.engine.models.importer import import_model
from tests.bench.contenders import HTTP_WORKLOADS, chosen
from tests.bench.entrants import Plan, run_engines, run_servers
from tests.bench.places import REPOSITORY, Places, peers_home
from tests.bench.report import as_json, table
from tests.bench.rounds import Findings

WORKLOADS = ("step", "w1", *HTTP_WORKLOADS)


def main() -> int:
    """Measure, print the table, write the file; exit status 1 where a contender failed, 130 after an interruption."""
    signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))  # end what was started, then this
    options = _parse(sys.argv[1:])
    try:
        contenders = chosen(options.peers)
    except ValueError as problem:
        print(f"bench: {problem}", file=sys.stderr)
        return 2
    model = options.model or import_model(None, into=REPOSITORY / "var" / "test-models", report=_say)
    findings, about, interrupted = Findings(), _about(options), False
    with tempfile.TemporaryDirectory(prefix="footplate-bench-") as name:
        places = Places(peers=peers_home(), model=Path(model).absolute(), scratch=Path(name))
        present = []
        for contender in contenders:
            if needs := contender.missing(places):
                findings.missing[contender.name] = [str(path) for path in needs]
                _say(f"missing: {contender.name} (no {', no '.join(map(str, needs))})")
            else:
                present.append(contender)
        plan = Plan(workloads=options.workloads, repeats=1 if options.quick else options.repeats, quick=options.quick)
        try:
            if "step" in plan.workloads:
                about["step"] = _steps(places, plan)
            run_engines(plan, present, places, findings, _say)
            run_servers(plan, present, places, findings, _say)
        except KeyboardInterrupt:
            interrupted = True
            _say("interrupted: what was measured so far")
        finally:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(as_json(findings, **about), indent=1) + "\n")
    print(table(findings))
    _say(f"everything is in {options.json}")
    return 130 if interrupted else 1 if findings.problems else 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    def words(text: str) -> list[str]:
        return [word for word in text.split(",") if word]

    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--workloads", type=words, default=list(WORKLOADS), help="step,w1,…,w5; all where not given")
    parser.add_argument("--repeats", type=int, default=3, help="rounds")
    parser.add_argument(
        "--peers", type=words, help="names; every installed one where not given, none for an empty list"
    )
    parser.add_argument("--quick", action="store_true", help="one short round, to see that all works")
    parser.add_argument("--model", type=Path, help="a model folder, instead of the default model's")
    parser.add_argument("--json", type=Path, default=REPOSITORY / "var" / "bench.json", help="file of all figures")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.workloads if name not in WORKLOADS]:
        parser.error(f"there is no workload {', '.join(unknown)}; there are: {', '.join(WORKLOADS)}")
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    return options


def _about(options: argparse.Namespace) -> dict[str, Any]:
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines(Path("/proc/cpuinfo")) if line.startswith("model name")), ""
    )
    return {
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "processor": cpu,
        "num_cores": len(os.sched_getaffinity(0)),
        "repeats": options.repeats,
        "quick": options.quick,
    }


def _lines(path: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return path.read_text().splitlines()
    return []


def _steps(places: Places, plan: Plan) -> dict[str, Any]:
    """The decode step's breakdown beside its floor, as `manage.py enginebench` measures it."""
    command = [sys.executable, "manage.py", "enginebench", "--workload", "step", "--json"]
    command += ["--quick"] if plan.quick else ["--repeats", str(plan.repeats)]
    environment = {"FOOTPLATE_HOME": str(places.home), "FOOTPLATE_MODEL": str(places.model)}
    done = subprocess.run(
        command, cwd=REPOSITORY, env={**os.environ, **environment}, check=True, stdout=subprocess.PIPE
    )
    figures = dict(json.loads(done.stdout))
    for batch, step in figures["step_ms"].items():
        floor, parts = figures["floor_ms"][batch], figures["breakdown_ms"][batch]
        shares = ", ".join(f"{name} {value:.2f}" for name, value in parts.items() if name != "step")
        print(f"decode step of {batch}: {step:.2f} ms, {step / floor:.2f} × the floor of {floor:.2f} ms ({shares})")
    return figures


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
