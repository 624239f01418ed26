"""The console over PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
FILES = (
    "test_commands.py",
    "test_pages.py",
    "test_sessions.py",
    "test_tenant_keys.py",
    "test_tenant_list.py",
    "test_tenant_quotas.py",
    "test_tenant_usage.py",
    "test_tenants.py",
    "postgresql_only.py",
)


@pytest.mark.stack
def test_the_console_holds_on_postgresql(fresh_postgres_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *(HERE / name for name in FILES)],
        cwd=HERE.parents[1],
        env={**os.environ, "TESTS_DATABASE_URL": fresh_postgres_url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
