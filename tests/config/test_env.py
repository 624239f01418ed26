"""The environment is read loudly: what makes no sense ends the process with one line."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from serving.config.env import Environment, EnvironmentProblem, embedded_socket, stored_secret

ROOT = Path(__file__).resolve().parents[2]


def environment(**variables: str) -> Environment:
    return Environment(variables)


def test_an_empty_variable_is_an_unset_one() -> None:
    assert environment(NAME="").text("NAME", "default") == "default"
    assert environment(NAME="  ").integer("NAME", 5, low=1, high=9) == 5
    assert environment().flag("NAME", default=True)


@pytest.mark.parametrize(
    ("value", "meaning"),
    [("1", True), ("TRUE", True), ("yes", True), ("on", True), ("0", False), ("False", False), ("no", False)],
)
def test_reads_flags(value: str, meaning: bool) -> None:
    assert environment(NAME=value).flag("NAME", default=not meaning) is meaning


@pytest.mark.parametrize("value", ["0", "10", "1.5", "five", "1e0", "-1", "nan"])
def test_refuses_what_is_no_integer_within_bounds(value: str) -> None:
    with pytest.raises(EnvironmentProblem, match=f"NAME must be an integer from 1 to 9, not '{value}'"):
        environment(NAME=value).integer("NAME", 5, low=1, high=9)


def test_an_integer_that_may_be_missing_is_none_then() -> None:
    assert environment(NAME=" ").optional_integer("NAME", low=0, high=9) is None
    assert environment(NAME="0").optional_integer("NAME", low=0, high=9) == 0
    with pytest.raises(EnvironmentProblem, match="NAME must be an integer from 0 to 9, not 'x'"):
        environment(NAME="x").optional_integer("NAME", low=0, high=9)


@pytest.mark.parametrize("value", ["nan", "inf", "-0.1", "9.1", "five"])
def test_refuses_what_is_no_number_within_bounds(value: str) -> None:
    with pytest.raises(EnvironmentProblem, match="NAME must be a number from 0 to 9"):
        environment(NAME=value).number("NAME", 5, low=0, high=9)


def test_refuses_an_unknown_choice_and_names_the_known() -> None:
    with pytest.raises(EnvironmentProblem, match="NAME must be one of cpu, cuda, not 'tpu'"):
        environment(NAME="tpu").choice("NAME", "cpu", ("cpu", "cuda"))


@pytest.mark.parametrize("value", ["a/b", "two words", "naïve", "x" * 65, "a:b", "..", ".hidden"])
def test_refuses_a_name_that_no_address_can_hold(value: str) -> None:
    with pytest.raises(EnvironmentProblem, match="NAME must be a name of 1 to 64 letters"):
        environment(NAME=value).name("NAME", "default")
    assert environment(NAME="chat-7b_v1.2").name("NAME", "default") == "chat-7b_v1.2"


def test_splits_words() -> None:
    assert environment(NAME=" a, b ,,c ").words("NAME", "") == ["a", "b", "c"]


def test_a_home_with_a_long_path_has_its_socket_elsewhere(tmp_path: Path) -> None:
    near, far = Path("/var/lib/footplate"), tmp_path / ("x" * 100)
    assert embedded_socket(near) == near / "valkey" / "valkey.sock"
    assert len(os.fsencode(embedded_socket(far))) <= 100
    assert embedded_socket(far) == embedded_socket(far) != embedded_socket(tmp_path / ("y" * 100))


def test_a_secret_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    secret = stored_secret(path)
    assert len(secret) >= 50
    assert stored_secret(path) == secret
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("variables", "line"),
    [
        ({"PORT": "http"}, "footplate: PORT must be an integer from 1 to 65535, not 'http'"),
        ({"PORT": "65536"}, "footplate: PORT must be an integer from 1 to 65535, not '65536'"),
        ({"FOOTPLATE_DEVICE": "tpu"}, "footplate: FOOTPLATE_DEVICE must be one of cpu, cuda, not 'tpu'"),
        ({"FOOTPLATE_DEBUG": "maybe"}, "footplate: FOOTPLATE_DEBUG must be one of 1, 0, true,"),
        ({"FOOTPLATE_HOME": "/dev/null/home"}, "footplate: FOOTPLATE_HOME must be a folder that can be written"),
    ],
)
def test_a_bad_setting_ends_every_command_with_one_line(tmp_path: Path, variables: dict[str, str], line: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "serve"],
        env={**os.environ, "FOOTPLATE_HOME": str(tmp_path), "DJANGO_SETTINGS_MODULE": "serving.config.settings"}
        | variables,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1


_AWAKE = """
import serving.config.settings, time, torch
numbers = torch.randn(32, 49152)
awake = 0.0
for _ in range(20):
    numbers.softmax(-1)
    before = time.process_time()
    time.sleep(0.02)
    awake += time.process_time() - before
print(awake)
"""


@pytest.mark.heavy
def test_pytorchs_threads_sleep_soon_after_an_operation(tmp_path: Path) -> None:
    """Its own default, twenty times as long or more, is what an operator can still ask for."""

    def seconds_awake(**variables: str) -> float:
        environment = {**os.environ, "FOOTPLATE_HOME": str(tmp_path), "OMP_NUM_THREADS": "2", **variables}
        command = [sys.executable, "-c", _AWAKE]
        return float(subprocess.run(command, env=environment, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout)

    assert seconds_awake() < seconds_awake(GOMP_SPINCOUNT="300000") / 3
