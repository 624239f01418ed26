"""All that the database keeps, but for the console's own tests, over PostgreSQL."""

from __future__ import annotations

import pytest

from tests.postgresql import run_tests_on_postgresql

FILES = (
    "tests/admission/test_keys.py",
    "tests/admission/test_tenants.py",
    "tests/admission/test_tenant_pools.py",
    "tests/admission/test_tenant_conflicts.py",
    "tests/admission/test_overview.py",
    "tests/admission/test_migrations.py",
    "tests/admission/test_usage.py",
    "tests/admission/test_authenticator.py",
    "tests/audit/test_recording.py",
    "tests/lab/runs/test_taking.py",
    "tests/lab/runs/test_working.py",
    "tests/lab/steps",
    "tests/tuning",
    "tests/telemetry/test_request_drain.py",
    "tests/telemetry/test_request_selectors.py",
    "tests/telemetry/test_rollup_drain.py",
    "tests/telemetry/test_history_selectors.py",
    "tests/api/test_steering.py",
    "tests/api/test_tenants.py",
    "tests/api/test_tenant_keys.py",
)


@pytest.mark.stack
def test_all_that_is_stored_holds_on_postgresql(fresh_postgres_url: str) -> None:
    run_tests_on_postgresql(fresh_postgres_url, FILES)
