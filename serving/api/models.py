"""`GET /v1/models`, and one of them."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from serving.api.bodies import Model, ModelList, encode
from serving.api.context import principal_of, services_of
from serving.api.routing import find_route, usable_models
from serving.contracts.errors import ModelNotFound

_CREATED = 0
"""A model's folder says nothing reliable about when the model was made."""


async def list_models(request: HttpRequest) -> HttpResponse:
    """The models that this key may use, each with its longest context."""
    return _json(ModelList(data=_models(request)))


async def get_model(request: HttpRequest, model: str) -> HttpResponse:
    """One model."""
    found = next((known for known in _models(request) if known.id == model), None)
    if found is None:
        raise ModelNotFound(f"the model {model[:200]!r} does not exist: /v1/models lists those that do", param="model")
    return _json(found)


def _models(request: HttpRequest) -> list[Model]:
    pools, allowed = services_of(request).gateway.pools(), principal_of(request).account.pools
    contexts = {
        name: find_route(pools, model=name, allowed=allowed).max_model_len for name in usable_models(pools, allowed)
    }
    return [Model(id=name, created=_CREATED, max_model_len=context) for name, context in contexts.items()]


def _json(body: Model | ModelList) -> HttpResponse:
    return HttpResponse(encode(body), content_type="application/json")
