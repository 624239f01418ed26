"""What the import contracts cannot say: who loads torch, who reads the environment, how long a file may be."""

from __future__ import annotations

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("serving", "dashboard")
LONGEST_FILE = 400
TEXT_SUFFIXES = {".py", ".toml", ".txt", ".md", ".html", ".css", ".js", ".json", ".yml", ".yaml", ".cfg", ".sh", ""}
TORCH_FREE = [
    "serving.contracts.messages",
    "serving.contracts.tunables",
    "serving.engine.block_pool",
    "serving.engine.engine",
    "serving.engine.plan",
    "serving.engine.scheduler",
    "serving.engine.sequence",
    "serving.engine.stats",
]
WEIGHTY = ("torch", "transformers", "numpy", "django", "celery", "redis", "channels", "twisted")


def sources() -> Iterator[Path]:
    for package in PACKAGES:
        yield from sorted((ROOT / package).rglob("*.py"))


@functools.cache
def tracked_files() -> tuple[Path, ...]:
    """Files that git knows or would add."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return tuple(path for name in listed.split("\0") if name and (path := ROOT / name).is_file())


def texts() -> Iterator[tuple[Path, str]]:
    for path in tracked_files():
        if path.suffix in TEXT_SUFFIXES and path != Path(__file__).resolve():
            yield path, path.read_text(encoding="utf-8", errors="replace")


def imports_of(path: Path) -> set[str]:
    """Every module that a file imports, in dotted form; names imported from a module count as well."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("module", TORCH_FREE)
def test_the_scheduler_side_loads_nothing_weighty(module: str) -> None:
    code = f"import sys, {module}; print(sorted(set(sys.modules) & set({WEIGHTY!r})))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_contracts_import_only_msgspec_and_the_standard_library() -> None:
    allowed = {*sys.stdlib_module_names, "msgspec"}
    for path in (ROOT / "serving" / "contracts").rglob("*.py"):
        foreign = {
            name
            for name in imports_of(path)
            if name.split(".")[0] not in allowed and not name.startswith("serving.contracts")
        }
        assert not foreign, f"{path.name} imports {foreign}"


@pytest.mark.parametrize("package", ["serving", "serving/engine"])
def test_a_package_whose_parts_must_load_alone_is_empty(package: str) -> None:
    assert (ROOT / package / "__init__.py").read_text() == ""


def test_only_the_composition_root_reads_the_environment() -> None:
    readers = [
        path.relative_to(ROOT)
        for path in sources()
        if not path.is_relative_to(ROOT / "serving" / "config")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "environb", "getenv"}
    ]
    assert readers == []


def test_only_api_and_console_use_djangos_http() -> None:
    rooms = ("admission", "audit", "contracts", "engine", "gateway", "telemetry", "tuning", "worker")
    users = [
        (path.relative_to(ROOT), name)
        for room in rooms
        for path in (ROOT / "serving" / room).rglob("*.py")
        for name in imports_of(path)
        if name.startswith(("django.http", "django.shortcuts", "django.views"))
    ]
    assert users == []


@pytest.mark.heavy
def test_an_engine_process_does_not_load_what_only_importing_a_model_needs() -> None:
    code = (
        "import sys, serving.engine.model_runner, serving.worker.lifecycle;"
        "print(sorted(set(sys.modules) & {'transformers', 'gguf', 'django', 'celery', 'twisted'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr


def test_no_source_file_is_longer_than_one_noun_needs() -> None:
    checked = [path for path in tracked_files() if path.suffix in {".py", ".js", ".css", ".html"}]
    assert len(checked) > 50
    long = {
        str(path.relative_to(ROOT)): n for path in checked if (n := len(path.read_text().splitlines())) > LONGEST_FILE
    }
    assert long == {}


def test_no_text_names_a_registry_or_a_machines_folder() -> None:
    unwanted = (
        "pypi" + ".org",
        "pythonhosted" + ".org",
        "registry.npmjs" + ".org",
        "--index" + "-url",
        "--extra-index" + "-url",
        "--find" + "-links",
    )
    found = [(str(path.relative_to(ROOT)), word) for path, text in texts() for word in unwanted if word in text]
    assert found == []


def test_every_dependency_is_pinned_exactly() -> None:
    pins = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#")]
    assert all(line.count("==") == 1 and "+" not in line and "@" not in line for line in pins)
    assert "torch==2.13.0" in pins
