"""The console over PostgreSQL."""

from __future__ import annotations

import pytest

from tests.postgresql import run_tests_on_postgresql

FILES = (
    "tests/dashboard/test_audit.py",
    "tests/dashboard/test_commands.py",
    "tests/dashboard/test_pages.py",
    "tests/dashboard/test_playground.py",
    "tests/dashboard/test_sample_traffic.py",
    "tests/dashboard/test_sessions.py",
    "tests/dashboard/test_tenant_keys.py",
    "tests/dashboard/test_tenant_list.py",
    "tests/dashboard/test_tenant_quotas.py",
    "tests/dashboard/test_tenant_usage.py",
    "tests/dashboard/test_tenants.py",
    "tests/dashboard/test_tuning.py",
    "tests/dashboard/test_users.py",
    "tests/dashboard/postgresql_only.py",
)


@pytest.mark.stack
def test_the_console_holds_on_postgresql(fresh_postgres_url: str) -> None:
    run_tests_on_postgresql(fresh_postgres_url, FILES)
