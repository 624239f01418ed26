"""The console's prompts go on the account of a tenant of their own."""

from __future__ import annotations

import pytest
from redis import Redis

from serving.admission.console_account import read_console_account
from serving.admission.models import Tenant
from serving.admission.quotas import change_quotas
from serving.admission.tenants import change_tenant, create_tenant
from serving.audit.selectors import events_of_tenant
from serving.contracts.errors import PermissionDenied
from serving.contracts.quotas import Quotas

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def redis(valkey: str) -> Redis:
    return Redis.from_url(valkey)


def test_its_tenant_is_made_by_the_first_prompt_alone() -> None:
    accounts = [read_console_account() for _ in range(3)]
    (tenant,) = Tenant.objects.all()
    assert tenant.name == "console"
    assert [event.action for event in events_of_tenant(tenant.pk)] == ["tenant made"]
    assert {account.tenant_id for account in accounts} == {tenant.pk}
    assert accounts[0].key_prefix == ""


def test_its_quotas_and_its_switch_count_for_the_next_prompt(redis: Redis) -> None:
    tenant = create_tenant("console", author="tests", redis=redis, weight=3)
    change_quotas(tenant.pk, {"tokens_per_day": 70}, author="tests", redis=redis)
    account = read_console_account()
    assert [(charge.subject, charge.quotas, charge.version) for charge in account.charges] == [
        (f"tenant:{tenant.pk}", Quotas(tokens_per_day=70), 1)
    ]
    assert (account.weight, account.tenant_id) == (3, tenant.pk)
    change_tenant(tenant.pk, {"enabled": False}, author="tests", redis=redis)
    with pytest.raises(PermissionDenied, match="switched off"):
        read_console_account()
