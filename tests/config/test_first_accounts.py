"""Whom the first start makes, and whom it leaves alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User

from dashboard.roles import ensure_roles
from dashboard.users import make_user
from serving.admission.models import Tenant
from serving.config.bootstrap import OPERATOR, first_run_file, prepare_database
from serving.contracts.actors import COMMAND_LINE


@pytest.mark.django_db(transaction=True)
def test_users_whom_a_deployer_made_stay_and_get_no_superuser_beside_them(settings: Any, tmp_path: Path) -> None:
    settings.FOOTPLATE_HOME = tmp_path
    ensure_roles()
    made = make_user(OPERATOR, role="admin", author=COMMAND_LINE)
    assert not prepare_database(lambda _: None, with_accounts=True)
    assert [(user.pk, user.is_superuser) for user in User.objects.all()] == [(made.user_id, False)]
    assert not Tenant.objects.exists()
    assert not first_run_file().exists()
