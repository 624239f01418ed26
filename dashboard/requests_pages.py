"""What all pages about requests share: who may open them."""

from __future__ import annotations

from django.urls import reverse

from dashboard.pages import only
from dashboard.permissions import may_abort, may_view_requests

for_log_readers = only(may_view_requests)
for_aborters = only(may_abort)


def list_url() -> str:
    """Where the list of requests is."""
    return reverse("dashboard:requests")
