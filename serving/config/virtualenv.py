"""Make the virtual environment `.venv` and install what pyproject.toml asks for, at the versions of constraints.txt.

Usage: virtualenv.py run|test. Does nothing where the same files were installed before. Standard library only, since
it runs before anything is installed.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
SOURCES = (ROOT / "pyproject.toml", ROOT / "constraints.txt")


def main() -> None:
    """Bring the environment up to date, or end with one line that says why that failed."""
    if sys.version_info < (3, 11):
        sys.exit("footplate: Python 3.11 or newer is needed, this is " + sys.version.split()[0])
    if len(sys.argv) != 2 or sys.argv[1] not in {"run", "test"}:
        sys.exit("usage: virtualenv.py run|test")
    purpose = sys.argv[1]
    os.chdir(ROOT)
    stamp = VENV / f"installed-{purpose}"
    wanted = _fingerprint()
    if PYTHON.exists() and _is_installed(purpose, wanted):
        return
    _make_venv()
    print(f"footplate: installing what it needs to {purpose} (the first time takes some minutes)", flush=True)
    _install(_requirements(purpose))
    stamp.write_text(wanted)


def _fingerprint() -> str:
    digest = hashlib.sha256(sys.version.encode())
    for source in SOURCES:
        digest.update(source.read_bytes())
    return digest.hexdigest()


def _is_installed(purpose: str, wanted: str) -> bool:
    # What tests need includes what running needs.
    stamps = [VENV / f"installed-{name}" for name in {purpose, "test"}]
    return any(stamp.is_file() and stamp.read_text() == wanted for stamp in stamps)


def _make_venv() -> None:
    if PYTHON.exists():
        return
    made = subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=False, capture_output=True, text=True)
    if made.returncode != 0:
        lines = (made.stdout + made.stderr).strip().splitlines() or ["no reason given"]
        sys.exit(
            f"footplate: {sys.executable} cannot make a virtual environment (is its venv package there?): {lines[0]}"
        )


def _requirements(purpose: str) -> "list[str]":
    import tomllib

    project = tomllib.loads(SOURCES[0].read_text(encoding="utf-8"))
    runtime: list[str] = project["project"]["dependencies"]
    return runtime + project["dependency-groups"]["dev"] if purpose == "test" else runtime


def _install(requirements: "list[str]") -> None:
    listing = VENV / "requirements.txt"
    listing.write_text("\n".join(requirements) + "\n", encoding="utf-8")
    command = [str(PYTHON), "-m", "pip", "install", "--quiet", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*command, "-r", str(listing), "-c", "constraints.txt"], check=False)
    if done.returncode != 0:
        sys.exit("footplate: pip could not install what is needed; its message is above")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("footplate: interrupted")
