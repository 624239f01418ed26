"""`GET /v1/models`, and one of them."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from serving.api.bodies import Model, ModelList, encode
from serving.api.context import services_of
from serving.contracts.errors import ModelNotFound

_CREATED = 0
"""A model's folder says nothing reliable about when the model was made."""


async def list_models(request: HttpRequest) -> HttpResponse:
    """The models that are served, each with its longest context."""
    return _json(ModelList(data=_models(request)))


async def get_model(request: HttpRequest, model: str) -> HttpResponse:
    """One model."""
    found = next((known for known in _models(request) if known.id == model), None)
    if found is None:
        raise ModelNotFound(f"the model {model[:200]!r} does not exist: /v1/models lists those that do", param="model")
    return _json(found)


def _models(request: HttpRequest) -> list[Model]:
    views = services_of(request).gateway.pools()
    unique = {view.model: view for view in reversed(views)}
    return [Model(id=name, created=_CREATED, max_model_len=view.max_model_len) for name, view in sorted(unique.items())]


def _json(body: Model | ModelList) -> HttpResponse:
    return HttpResponse(encode(body), content_type="application/json")
