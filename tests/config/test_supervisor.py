"""Children are restarted, stopped in order, and never outlive their supervisor."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from serving.config.child import MAX_LOG_BYTES, Backoff, Child, ChildSpec
from serving.config.supervisor import ChildCannotStart, Supervisor

pytestmark = pytest.mark.waits

ROOT = Path(__file__).resolve().parents[2]
TOY = ROOT / "tests" / "config" / "toy_supervisor.py"
FOREVER = "while true; do sleep 0.05; done"
STUBBORN = f"trap '' TERM; {FOREVER}"


def orderly(folder: Path, name: str, *, seconds: float = 0.0) -> str:
    """A script that notes when it was told to stop and when it ended."""
    notes = folder / "notes"
    return f"trap 'echo {name} told >> {notes}; sleep {seconds}; echo {name} ended >> {notes}; exit 0' TERM; {FOREVER}"


def spec(script: str, *, name: str = "toy", stop_seconds: float = 5.0) -> ChildSpec:
    return ChildSpec(name=name, command=("sh", "-c", script), environment=os.environ, stop_seconds=stop_seconds)


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def wait_for(condition: Callable[[], bool], *, seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in {"Z", "X"}


@contextlib.contextmanager
def toy_supervisor(folder: Path, *children: str, mode: str = "watch") -> Iterator[subprocess.Popen[bytes]]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen([sys.executable, str(TOY), str(folder), mode, *children], env=environment)
    try:
        wait_for(lambda: "started" in lines(folder / "reports") and len(lines(folder / "pids")) == len(children))
        yield process
    finally:
        process.kill()
        process.wait()


def test_restarts_a_dead_child_with_growing_delays_and_says_so(tmp_path: Path) -> None:
    reports: list[str] = []
    backoff = Backoff(first=0.05, longest=0.2)
    with Supervisor(log_folder=tmp_path, report=reports.append, backoff=backoff) as supervisor:
        supervisor.start(spec("echo out of luck; exit 3"))
        assert supervisor.watch(until=lambda: len(reports) == 4, poll_seconds=0.02)
    delays = [0.05, 0.1, 0.2, 0.2]
    assert reports == [f"toy died (exit status 3: out of luck), restarting in {delay} s" for delay in delays]
    assert lines(tmp_path / "toy.log") == ["out of luck"] * 4


def test_a_child_knows_how_often_it_was_started_before(tmp_path: Path) -> None:
    child = Child(spec("echo $FOOTPLATE_RESTARTS"), log_folder=tmp_path, backoff=Backoff())
    for started in range(3):
        child.start(0.0)
        wait_for(lambda: not child.is_alive)
        assert lines(child.log) == ["0", "1", "2"][: started + 1]


def test_names_the_signal_that_killed_a_child(tmp_path: Path) -> None:
    reports: list[str] = []
    with Supervisor(log_folder=tmp_path, report=reports.append) as supervisor:
        supervisor.start(spec("kill -9 $$"))
        assert supervisor.watch(until=lambda: bool(reports), poll_seconds=0.02)
    assert reports == ["toy died (signal 9), restarting in 0.5 s"]


def test_a_child_that_stayed_up_starts_over_with_the_shortest_delay(tmp_path: Path) -> None:
    child = Child(spec("exit 1"), log_folder=tmp_path, backoff=Backoff(first=1.0, longest=8.0, reset_after=60.0))
    restarts = []
    for started_at, ended_at in [(0.0, 1.0), (2.0, 3.0), (10.0, 69.0), (100.0, 160.0)]:
        child.start(started_at)
        wait_for(lambda: not child.is_alive)
        assert child.notice_death(ended_at) is not None
        assert child.restart_at is not None
        restarts.append(child.restart_at - ended_at)
    assert restarts == [1.0, 2.0, 4.0, 1.0]


def test_gives_up_on_a_child_that_cannot_start(tmp_path: Path) -> None:
    with Supervisor(log_folder=tmp_path, report=lambda line: None, backoff=Backoff(first=0.01)) as supervisor:
        supervisor.start(spec("echo no such model >&2; exit 1"))
        with pytest.raises(ChildCannotStart, match="toy cannot start: no such model"):
            supervisor.watch(give_up_after=3)
    assert len(lines(tmp_path / "toy.log")) == 3


def test_a_child_that_was_killed_is_not_given_up(tmp_path: Path) -> None:
    reports: list[str] = []
    with Supervisor(log_folder=tmp_path, report=reports.append, backoff=Backoff(first=0.01)) as supervisor:
        supervisor.start(spec("kill -9 $$"))
        assert supervisor.watch(until=lambda: len(reports) == 5, poll_seconds=0.02, give_up_after=2)


def test_what_a_dead_child_started_dies_before_the_restart(tmp_path: Path) -> None:
    reports: list[str] = []
    with Supervisor(log_folder=tmp_path, report=reports.append) as supervisor:
        supervisor.start(spec(f"sleep 300 & echo $! > {tmp_path}/grandchild; exit 1"))
        assert supervisor.watch(until=lambda: bool(reports), poll_seconds=0.02)
    wait_for(lambda: not is_running(int((tmp_path / "grandchild").read_text())))


def test_a_large_log_is_set_aside_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "toy.log").write_bytes(b"x" * (MAX_LOG_BYTES + 1))
    child = Child(spec("echo new"), log_folder=tmp_path, backoff=Backoff())
    child.start(0.0)
    wait_for(lambda: not child.is_alive)
    assert lines(tmp_path / "toy.log") == ["new"]
    assert (tmp_path / "toy.log.1").stat().st_size == MAX_LOG_BYTES + 1


def test_a_log_that_grows_too_long_is_set_aside_while_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("serving.config.child.MAX_LOG_BYTES", 10)
    monkeypatch.setattr("serving.config.supervisor._LOGS_EVERY_SECONDS", 0.0)
    log, older, go_on = tmp_path / "toy.log", tmp_path / "toy.log.1", tmp_path / "go-on"
    reports: list[str] = []
    script = f"echo a long first line; while [ ! -e {go_on} ]; do sleep 0.02; done; echo second; exit 3"
    with Supervisor(log_folder=tmp_path, report=reports.append) as supervisor:
        supervisor.start(spec(script))
        assert supervisor.watch(until=older.exists, poll_seconds=0.02)
        assert (lines(log), lines(older)) == ([], ["a long first line"])
        go_on.touch()
        assert supervisor.watch(until=lambda: bool(reports), poll_seconds=0.02)
    assert (lines(log), lines(older)) == (["second"], ["a long first line"])
    assert reports == ["toy died (exit status 3: second), restarting in 0.5 s"]


def test_a_log_that_cannot_be_set_aside_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.config.child.MAX_LOG_BYTES", 10)
    (tmp_path / "toy.log.1").mkdir()
    reports: list[str] = []
    with Supervisor(log_folder=tmp_path, report=reports.append) as supervisor:
        supervisor.start(spec(f"echo a long first line; {FOREVER}"))
        wait_for(lambda: bool(lines(tmp_path / "toy.log")))
        assert supervisor.watch(until=lambda: bool(reports), poll_seconds=0.02)
    assert reports == ["the log of toy grows and cannot be set aside (Is a directory)"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_stops_rank_by_rank_and_ends_well(tmp_path: Path, number: int) -> None:
    children = [f"last:2:5:{orderly(tmp_path, 'last')}", f"first:0:5:{orderly(tmp_path, 'first', seconds=0.5)}"]
    with toy_supervisor(tmp_path, *children, f"second:1:5:{orderly(tmp_path, 'second')}") as supervisor:
        supervisor.send_signal(number)
        assert supervisor.wait(20) == 0
    order = [f"{name} {what}" for name in ("first", "second", "last") for what in ("told", "ended")]
    assert lines(tmp_path / "notes") == order
    assert lines(tmp_path / "reports") == ["started", "stopped"]


def test_kills_a_child_that_outstays_its_time(tmp_path: Path) -> None:
    children = (f"stubborn:0:0.3:{STUBBORN}", f"other:1:5:{orderly(tmp_path, 'other')}")
    with toy_supervisor(tmp_path, *children) as supervisor:
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(20) == 0
    assert "stubborn did not stop in time and was killed" in lines(tmp_path / "reports")
    assert lines(tmp_path / "notes") == ["other told", "other ended"]


def test_further_signals_hasten_the_stop(tmp_path: Path) -> None:
    with toy_supervisor(tmp_path, f"stubborn:0:3600:{STUBBORN}") as supervisor:
        for _ in range(3):
            supervisor.send_signal(signal.SIGTERM)
            time.sleep(0.3)
        assert supervisor.wait(20) == 0
    assert lines(tmp_path / "reports")[-1] == "stopped"


def test_a_child_that_dies_while_stopping_is_not_restarted(tmp_path: Path) -> None:
    with toy_supervisor(tmp_path, f"slow:0:5:{orderly(tmp_path, 'slow', seconds=0.5)}", f"other:1:5:{FOREVER}") as toy:
        toy.send_signal(signal.SIGTERM)
        wait_for(lambda: "slow told" in lines(tmp_path / "notes"))
        os.kill(int(lines(tmp_path / "pids")[-1]), signal.SIGKILL)
        assert toy.wait(20) == 0
    assert len(lines(tmp_path / "pids")) == 2
    assert "restarting" not in (tmp_path / "reports").read_text()


def test_a_stop_signal_interrupts_preparations_and_stops_what_was_started(tmp_path: Path) -> None:
    with toy_supervisor(tmp_path, f"early:0:5:{orderly(tmp_path, 'early')}", mode="work") as supervisor:
        supervisor.send_signal(signal.SIGTERM)
        assert supervisor.wait(20) == 0
    assert lines(tmp_path / "reports") == ["started", "stop requested", "stopped"]
    assert lines(tmp_path / "notes") == ["early told", "early ended"]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a process to its parent's death")
def test_nothing_outlives_a_supervisor_that_was_killed(tmp_path: Path) -> None:
    with toy_supervisor(tmp_path, f"a:0:5:{STUBBORN}", f"b:1:5:{FOREVER}") as supervisor:
        pids = [int(line) for line in lines(tmp_path / "pids")]
        assert all(is_running(pid) for pid in pids)
        supervisor.kill()
        supervisor.wait()
        wait_for(lambda: not any(is_running(pid) for pid in pids))


def test_a_child_has_a_session_of_its_own_so_that_ctrl_c_reaches_the_supervisor_alone(tmp_path: Path) -> None:
    with toy_supervisor(tmp_path, f"a:0:5:{FOREVER}") as supervisor:
        pid = int(lines(tmp_path / "pids")[0])
        assert os.getsid(pid) == pid != os.getsid(supervisor.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ties a process to its parent's death")
def test_a_process_may_ask_to_be_stopped_when_its_parent_was_killed(tmp_path: Path) -> None:
    code = (
        "import pathlib, signal, time; from serving.config.processes import stop_with_parent;"
        "signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path('stopped').touch(), exit()));"
        "stop_with_parent(); pathlib.Path('ready').touch(); time.sleep(60)"
    )
    # A second command keeps the shell from becoming the process itself.
    parent = subprocess.Popen(
        ["sh", "-c", f'"{sys.executable}" -c "{code}"; true'], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    wait_for((tmp_path / "ready").exists)
    parent.kill()
    parent.wait()
    wait_for((tmp_path / "stopped").exists)
