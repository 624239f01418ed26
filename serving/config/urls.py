"""Every path: the API, its documentation, and the console."""

from django.urls import include, path
from django.views.generic import RedirectView

from serving.api.application import build_api

urlpatterns = [
    path("", RedirectView.as_view(url="/console/")),
    path("console", RedirectView.as_view(url="/console/")),
    path("console/", include("dashboard.urls")),
    path("", build_api().urls),
]
