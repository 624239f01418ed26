"""Addresses under /console/."""

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path

from dashboard import prompting, views

app_name = "dashboard"

urlpatterns = [
    path("", views.live, name="live"),
    path("pools/<str:pool>/", views.live, name="pool"),
    path("pools/<str:pool>/versions/", views.versions, name="versions"),
    path("pools/<str:pool>/versions/<int:number>/roll-back", views.roll_back, name="roll_back"),
    path("pools/<str:pool>/prompt", prompting.prompt, name="prompt"),
    path(
        "login/",
        LoginView.as_view(template_name="dashboard/login.html", redirect_authenticated_user=True),
        name="login",
    ),
    path("logout/", LogoutView.as_view(next_page="dashboard:login"), name="logout"),
]
