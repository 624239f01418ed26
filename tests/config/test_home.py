"""FOOTPLATE_HOME is one start's at a time, and a refused start leaves nothing half done in it."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from django.conf import LazySettings

from serving.config.env import read_secret, stored_secret
from serving.config.home import StartProblem, keep_secret, locked_home


@pytest.fixture
def home(settings: LazySettings, tmp_path: Path) -> Path:
    """Where FOOTPLATE_HOME will be; no folder yet."""
    path = tmp_path / "srv" / "footplate"
    settings.FOOTPLATE_HOME = path
    return path


def start(home: Path, *, keeps: bool) -> None:
    with locked_home() as locked:
        (home / "valkey").mkdir(exist_ok=True)
        (home / "valkey" / "data").write_text("half")
        (home / "logs" / "engine.log").write_text("no memory")
        (home / "kernels").symlink_to(home.parent.parent)
        if keeps:
            locked.keep()
        raise StartProblem("no luck")


def refuse(home: Path, *, keeps: bool = False) -> None:
    with pytest.raises(StartProblem, match="no luck"):
        start(home, keeps=keeps)


def test_a_refused_start_takes_away_the_home_that_it_made(home: Path, tmp_path: Path) -> None:
    refuse(home)
    assert list(tmp_path.iterdir()) == []


def test_a_refused_start_empties_a_home_that_was_empty(home: Path) -> None:
    home.mkdir(parents=True)
    refuse(home)
    assert list(home.iterdir()) == []


def test_what_is_complete_stays(home: Path) -> None:
    refuse(home, keeps=True)
    assert (home / "logs" / "engine.log").read_text() == "no memory"


@pytest.mark.parametrize("there", ["footplate.sqlite3", "models/mine", "notes.txt"])
def test_a_home_that_had_anything_in_it_is_left_as_it_is(home: Path, there: str) -> None:
    (home / there).parent.mkdir(parents=True)
    (home / there).write_text("precious")
    refuse(home)
    assert (home / there).read_text() == "precious"
    assert (home / "valkey" / "data").exists()


def test_a_start_that_ends_well_leaves_its_home(home: Path) -> None:
    with locked_home():
        pass
    assert home.is_dir()


def test_the_second_of_two_starts_is_refused_and_touches_nothing(home: Path) -> None:
    with locked_home():
        (home / "models" / "first").mkdir()
        with pytest.raises(StartProblem, match="another `serve` runs on"), locked_home():
            pass
        assert (home / "models" / "first").is_dir()


def test_a_secret_is_kept_where_nobody_has_set_one(home: Path, settings: LazySettings) -> None:
    home.mkdir(parents=True)
    settings.SECRET_KEY, settings.SECRET_KEY_FILE = "given", None
    keep_secret()
    assert (settings.SECRET_KEY, list(home.iterdir())) == ("given", [])
    settings.SECRET_KEY_FILE = home / "secret_key"
    keep_secret()
    assert settings.SECRET_KEY == read_secret(home / "secret_key") == stored_secret(home / "secret_key") != "given"
    assert [path.name for path in home.iterdir()] == ["secret_key"]
    assert stat.S_IMODE((home / "secret_key").stat().st_mode) == 0o600


def test_looking_for_a_secret_makes_none(tmp_path: Path) -> None:
    assert len(read_secret(tmp_path / "secret_key")) >= 50
    assert read_secret(tmp_path / "secret_key") != read_secret(tmp_path / "secret_key")
    assert list(tmp_path.iterdir()) == []
