"""The quotas by which the door holds a workload's tenants. Blocking."""

from __future__ import annotations

from serving.admission.models import Tenant
from serving.admission.selectors import current_quotas_by_owner
from serving.contracts.quotas import Quotas
from serving.lab.runs.own_keys import LAB_TENANT
from serving.lab.workloads.workload import Workload


def quotas_of_tenants(workload: Workload) -> dict[str, Quotas]:
    """The quotas in force of those tenants of the workload that have some, by the names that it has of them: empty is
    the Lab's own."""
    names = {each.tenant or LAB_TENANT: each.tenant for each in workload.classes}
    tenants = list(Tenant.objects.filter(name__in=names))
    found = current_quotas_by_owner(tenants)
    by_name = {names[tenant.name]: found[tenant.pk][1] for tenant in tenants}
    return {name: quotas for name, quotas in by_name.items() if not quotas.is_empty}
