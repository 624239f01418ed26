"""Which key opens which path."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja.security.base import AuthBase

from serving.admission.services import Principal, authenticate


class KeyWithScope(AuthBase):
    """Owns the scopes, one of which a key needs. Raises `InvalidKey` and `PermissionDenied`.

    The documentation takes the scheme from the attributes; the header itself is read by `serving.admission` alone.
    """

    openapi_type = "http"
    openapi_scheme = "bearer"

    def __init__(self, *scopes: str) -> None:
        super().__init__()
        self._scopes = scopes
        self.is_async = True

    async def __call__(self, request: HttpRequest) -> Any:
        """Whose key the request bears."""
        principal: Principal = await authenticate(request.headers.get("Authorization"))
        principal.require(*self._scopes)
        return principal
