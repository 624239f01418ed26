"""What all pages about requests share: who may open them."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.urls import reverse

from dashboard.permissions import User, may_abort, may_view_requests
from dashboard.tenant_pages import View
from dashboard.threads import in_thread


def for_log_readers(view: View) -> View:
    """Only for those who may see requests."""
    return _guarded(view, may_view_requests)


def for_aborters(view: View) -> View:
    """Only for those who may end a request."""
    return _guarded(view, may_abort)


def list_url() -> str:
    """Where the list of requests is."""
    return reverse("dashboard:requests")


def _guarded(view: View, may: Callable[[User], bool]) -> View:
    @login_required
    @wraps(view)
    async def checked(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        if not await in_thread(may, await request.auser()):
            raise PermissionDenied
        return await view(request, **kwargs)

    return checked
