"""Addresses under /console/."""

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path

from dashboard import prompting, tenant_keys, tenant_list, tenant_quotas, tenant_usage, tenants, views

app_name = "dashboard"

urlpatterns = [
    path("", views.live, name="live"),
    path("pools/<str:pool>/", views.live, name="pool"),
    path("pools/<str:pool>/versions/", views.versions, name="versions"),
    path("pools/<str:pool>/versions/<int:number>/roll-back", views.roll_back, name="roll_back"),
    path("pools/<str:pool>/prompt", prompting.prompt, name="prompt"),
    path("tenants/", tenant_list.tenants, name="tenants"),
    path("tenants/new/", tenants.new, name="tenant_new"),
    path("tenants/<int:tenant_id>/", tenants.overview, name="tenant"),
    path("tenants/<int:tenant_id>/edit/", tenants.edit, name="tenant_edit"),
    path("tenants/<int:tenant_id>/quotas/", tenant_quotas.quotas, name="tenant_quotas"),
    path(
        "tenants/<int:tenant_id>/quotas/<int:number>/roll-back",
        tenant_quotas.roll_back,
        name="tenant_quotas_roll_back",
    ),
    path("tenants/<int:tenant_id>/keys/", tenant_keys.keys, name="tenant_keys"),
    path("tenants/<int:tenant_id>/keys/<str:prefix>/", tenant_keys.key, name="tenant_key"),
    path(
        "tenants/<int:tenant_id>/keys/<str:prefix>/<int:number>/roll-back",
        tenant_keys.roll_back,
        name="tenant_key_roll_back",
    ),
    path("tenants/<int:tenant_id>/keys/<str:prefix>/revoke/", tenant_keys.revoke, name="tenant_key_revoke"),
    path("tenants/<int:tenant_id>/usage/", tenant_usage.usage, name="tenant_usage"),
    path("tenants/<int:tenant_id>/usage.csv", tenant_usage.usage_csv, name="tenant_usage_csv"),
    path(
        "login/",
        LoginView.as_view(template_name="dashboard/login.html", redirect_authenticated_user=True),
        name="login",
    ),
    path("logout/", LogoutView.as_view(next_page="dashboard:login"), name="logout"),
]
