"""Tenants, keys and the ledger over PostgreSQL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
FILES = (
    "tests/admission/test_keys.py",
    "tests/admission/test_tenants.py",
    "tests/admission/test_tenant_pools.py",
    "tests/admission/test_tenant_conflicts.py",
    "tests/admission/test_overview.py",
    "tests/admission/test_migrations.py",
    "tests/admission/test_usage.py",
    "tests/admission/test_authenticator.py",
    "tests/api/test_tenants.py",
    "tests/api/test_tenant_keys.py",
)


@pytest.mark.stack
def test_tenants_keys_and_the_ledger_hold_on_postgresql(fresh_postgres_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *FILES],
        cwd=ROOT,
        env={**os.environ, "TESTS_DATABASE_URL": fresh_postgres_url},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
