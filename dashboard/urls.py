"""Addresses under /console/."""

from django.contrib.auth.views import LoginView, LogoutView
from django.urls import path

from dashboard import views

app_name = "dashboard"

urlpatterns = [
    path("", views.overview, name="overview"),
    path(
        "login/",
        LoginView.as_view(template_name="dashboard/login.html", redirect_authenticated_user=True),
        name="login",
    ),
    path("logout/", LogoutView.as_view(next_page="dashboard:login"), name="logout"),
]
