"""On whose account the console's own prompts go."""

from __future__ import annotations

from serving.admission.accounts import Account, Charge
from serving.admission.models import Tenant
from serving.admission.selectors import current_quotas
from serving.admission.tenants import ensure_tenant
from serving.contracts.actors import Actor
from serving.contracts.errors import PermissionDenied

CONSOLE_TENANT = "console"
"""The tenant whose usage and quotas those of the console's prompts are; it needs no key."""

_CONSOLE = Actor("the console", "system")


def read_console_account() -> Account:
    """The account as it is now; its tenant is made where there is none. Blocking.

    Raises `PermissionDenied` where the tenant is disabled.
    """
    tenant = Tenant.objects.filter(name=CONSOLE_TENANT).first() or ensure_tenant(CONSOLE_TENANT, author=_CONSOLE)
    if not tenant.enabled:
        raise PermissionDenied(f"prompts from the console are switched off: the tenant {CONSOLE_TENANT!r} is disabled")
    version, quotas = current_quotas(tenant)
    return Account(
        charges=(Charge(f"tenant:{tenant.pk}", quotas, version),),
        weight=tenant.weight,
        most_urgent=tenant.most_urgent,
        tenant_id=tenant.pk,
        pools=None if tenant.pools is None else tuple(tenant.pools),
        tenant_name=tenant.name,
        keeps_text=tenant.keeps_text,
    )
