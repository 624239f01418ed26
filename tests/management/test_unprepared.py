"""What commands say where nothing is prepared yet: one line each, and nothing is made by asking."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.conf import LazySettings
from django.core.management import CommandError, call_command
from django.db import OperationalError, ProgrammingError, connections

from serving.prepared import check_prepared, prepared_database

ROOT = Path(__file__).resolve().parents[2]
ALL_IN_TURN = """
import json, sys
from django.core.management import execute_from_command_line
for arguments in json.loads(sys.argv[1]):
    try:
        execute_from_command_line(["manage.py", *arguments])
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else print(end.code, file=sys.stderr) or 1
    print("status", status, file=sys.stderr)
"""
ASKED_FOR = [
    ["runweb"],
    ["runmonitor"],
    ["runjobs"],
    ["createkey"],
    ["createuser", "ada", "--role", "viewer"],
    ["tunables", "show"],
    ["tunables", "set", "max_running=4"],
    ["tunables", "preset", "chat"],
    ["tunables", "history"],
]
ELSEWHERE = [
    (["loadtest"], "no --key given, and there is none in {home}/first-run.json"),
    (["runengine"], "Redis at unix://{home}/valkey/valkey.sock does not answer"),
]


def test_every_command_names_the_folder_it_looked_at_and_makes_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    unset = {"DATABASE_URL", "REDIS_URL", "SECRET_KEY", "DJANGO_SETTINGS_MODULE"}
    inherited = {name: value for name, value in os.environ.items() if name not in unset and "FOOTPLATE" not in name}
    commands = [*ASKED_FOR, *(arguments for arguments, _ in ELSEWHERE)]
    done = subprocess.run(
        [sys.executable, "-c", ALL_IN_TURN, json.dumps(commands)],
        env=inherited | {"FOOTPLATE_HOME": str(home), "DJANGO_SETTINGS_MODULE": "serving.config.settings"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    lines = done.stderr.splitlines()
    assert lines[1::2] == ["status 1"] * len(commands), done.stderr
    said = lines[0::2]
    for arguments, line in zip(ASKED_FOR, said, strict=False):
        expected = (
            f"nothing is prepared in FOOTPLATE_HOME, {home}: there is no {home}/footplate.sqlite3; run `make serve`"
        )
        assert expected in line, arguments
    for (_, expected), line in zip(ELSEWHERE, said[len(ASKED_FOR) :], strict=True):
        assert expected.format(home=home) in line
    assert list(tmp_path.iterdir()) == []


def test_the_table_of_tunables_needs_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "NAME", "/nowhere/at.all")
    call_command("tunables", "table")
    assert "| `max_running` |" in capsys.readouterr().out


@pytest.mark.parametrize("database", ["file:shared?mode=memory", ":memory:"])
def test_a_database_in_memory_is_no_file_that_could_be_missing(monkeypatch: pytest.MonkeyPatch, database: str) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "NAME", database)
    check_prepared()


def test_whoever_signs_sessions_needs_the_secret_too(
    monkeypatch: pytest.MonkeyPatch, settings: LazySettings, tmp_path: Path
) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "NAME", ":memory:")
    settings.SECRET_KEY_FILE = tmp_path / "secret_key"
    with pytest.raises(CommandError, match=r"there is no .*/secret_key; run `make serve`"):
        check_prepared(needs_secret=True)
    (tmp_path / "secret_key").write_text("secret")
    check_prepared(needs_secret=True)


@pytest.mark.parametrize("error", [OperationalError, ProgrammingError])
def test_a_database_that_lacks_tables_or_does_not_answer_is_one_line(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "NAME", ":memory:")
    with pytest.raises(CommandError) as raised, prepared_database():
        raise error("no such table: tuning_pool\nLINE 1: SELECT")
    assert str(raised.value).startswith("the database cannot be used (no such table: tuning_pool); `manage.py prepare`")
    assert "\n" not in str(raised.value)
