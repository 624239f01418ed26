"""Django's way from an ASGI request to a view, for the API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from django.conf import settings
from django.core.handlers.asgi import ASGIHandler, ASGIRequest
from django.core.handlers.exception import convert_exception_to_response
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.urls import set_urlconf

from serving.api.context import note_rejection
from serving.api.errors import Problem, problem_of_status


class ApiHandler(ASGIHandler):
    """Owns nothing. Runs views without the console's middleware, and puts Django's own errors into the envelope.

    Sessions, messages and CSRF tokens have no part in an API whose every request bears a key; each of those layers
    would cost a request two changes of thread. What remains is asynchronous from the socket to the view.
    """

    def load_middleware(self, is_async: bool = False) -> None:  # noqa: FBT001, FBT002 (Django's signature)
        """No middleware at all."""
        self._view_middleware: list[Any] = []
        self._template_response_middleware: list[Any] = []
        self._exception_middleware: list[Any] = []
        self._middleware_chain = convert_exception_to_response(cast(Any, self)._get_response_async)

    async def get_response_async(self, request: Any) -> HttpResponseBase:
        """The view's response; an error page becomes the envelope (also where Django would show its details).

        Unlike Django's own, writes no line for each refusal: under overload there are many, and they must be cheap.
        """
        set_urlconf(settings.ROOT_URLCONF)
        response = await cast(Any, self)._middleware_chain(request)
        response._resource_closers.append(request.close)
        response = _in_envelope(response, scope=request.scope)
        if isinstance(response, HttpResponse):
            response.headers["Content-Length"] = str(len(response.content))
        return response

    def create_request(
        self, scope: Mapping[str, Any], body_file: Any
    ) -> tuple[ASGIRequest, None] | tuple[None, HttpResponse]:
        """As Django's; what cannot be a request is answered in the envelope."""
        request, response = super().create_request(scope, body_file)
        if request is not None:
            return request, None
        assert response is not None, "a refused request comes with its response"
        return None, _told(problem_of_status(response.status_code), scope=scope).response()


def _in_envelope(response: HttpResponseBase, *, scope: Mapping[str, Any]) -> HttpResponseBase:
    if response.status_code < 400 or response.headers.get("Content-Type", "").startswith("application/json"):
        return response
    kept = {name: response.headers[name] for name in ("Allow", "Retry-After") if name in response.headers}
    return _told(problem_of_status(response.status_code, headers=kept), scope=scope).response()


def _told(problem: Problem, *, scope: Mapping[str, Any]) -> Problem:
    note_rejection(scope, problem.error.code)
    return problem
