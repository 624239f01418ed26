"""The API put together: paths, keys, errors and documentation."""

from __future__ import annotations

import functools
from typing import Any, cast

import msgspec
from django.core.exceptions import RequestDataTooBig
from django.http import Http404, HttpRequest, HttpResponse
from ninja import NinjaAPI, Swagger
from ninja.errors import HttpError, ValidationError, ValidationErrorContext
from ninja.openapi.schema import OpenAPISchema
from ninja.operation import Operation
from pydantic import BaseModel

from serving.api import completions, embeddings, health, metrics, models, ops, tenant_keys, tenants, tokenizing, trials
from serving.api.auth import KeyWithScope
from serving.api.bodies import ChatCompletion, ChatCompletionChunk, Completion, Model, ModelList
from serving.api.compatibility import describe_compatibility
from serving.api.context import note_rejection
from serving.api.errors import ErrorEnvelope, problem_of
from serving.api.mapping import DEFAULT_COMPLETION_TOKENS
from serving.api.places import Places
from serving.api.validation import StrictParser, domain_error_of
from serving.contracts.errors import DomainError

_DOCUMENTED = (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    tokenizing.Detokenized,
    embeddings.EmbeddingList,
    ErrorEnvelope,
    Model,
    ModelList,
    tokenizing.Tokenized,
)
_REFERENCE = "#/components/schemas/{name}"

_DESCRIPTION = f"""
An OpenAI-compatible API under `/v1`, and the steering API under `/ops/v1`. Every request but the health checks bears a
key: `Authorization: Bearer fp-…`.

**Length.** Prompt and answer together must fit `max_model_len`. A request that asks for more is refused with
`context_length_exceeded`; nothing is cut off. Without `max_tokens` a completion has at most {DEFAULT_COMPLETION_TOKENS}
tokens, and a chat completion the rest of the context.

**Embeddings** are the mean of a model's last hidden states over an input's tokens, as a vector of length 1, and are
marked `"pooling": "mean"`. They come from a model that was made to write text: one that was trained for embeddings
would give better ones.

**Streams** begin when the request is first scheduled; until then, failures have their own status. Later failures are
events of the form `{{"error": …}}`, after which the stream ends without `[DONE]`.

**Quotas.** A request reserves its prompt and, for each choice, its longest answer, and counts with what it used once it
ended. What is too much is a 429 with `rate_limit_exceeded` (a minute, or at once) or `insufficient_quota` (a day, a
month) and `Retry-After`. Answers under `/v1` bear `x-ratelimit-limit-requests`, `…-remaining-requests`,
`…-reset-requests` and the same of `tokens`, where a minute has such a quota.

**Fields.** {describe_compatibility()}
"""


class FootplateApi(NinjaAPI):
    """Owns the routes. Validation errors become our own; the documented answers are those that are really encoded."""

    def validation_error_from_error_contexts(
        self, error_contexts: list[ValidationErrorContext[Any]]
    ) -> ValidationError:
        """The first body's complaint, as the exception that the error handler knows."""
        context = error_contexts[0]
        error = ValidationError([])
        # Declared as an instance, but the operation hands over the model's class.
        wrapper = cast("type[BaseModel]", context.model)
        error.__cause__ = domain_error_of(context.pydantic_validation_error, wrapper)
        return error

    def get_openapi_operation_id(self, operation: Operation) -> str:
        """The view's name, which is unique."""
        return operation.view_func.__name__

    def get_openapi_schema(self, **kwargs: Any) -> OpenAPISchema:
        """Ninja's, with the schemas of answers."""
        schema = super().get_openapi_schema(**kwargs)
        _, components = msgspec.json.schema_components(_DOCUMENTED, ref_template=_REFERENCE)
        schema["components"]["schemas"].update(components)
        return schema


def build_api() -> NinjaAPI:
    """The API with all its paths."""
    api = FootplateApi(
        title="Footplate",
        version="1",
        description=_DESCRIPTION,
        parser=StrictParser(),
        # The validator's badge would be an image from another host.
        docs=Swagger(settings={"validatorUrl": None}),
        openapi_url="/openapi.json",
        docs_url="/docs",
    )
    for kind in (Exception, DomainError, HttpError, Http404, RequestDataTooBig, ValidationError):
        api.add_exception_handler(kind, _answer_with_problem)
    _add_generation(api)
    _add_steering(api)
    _add_tenants(api)
    _add_health(api)
    _add_metrics(api)
    return api


def _add_generation(api: NinjaAPI) -> None:
    post = functools.partial(api.post, auth=KeyWithScope("generate"), tags=["generation"])
    # Only what always goes on to the door: all else asks for the epoch before the key opens.
    post_at_the_door = functools.partial(post, auth=KeyWithScope("generate", at_the_door=True))
    post_at_the_door("/v1/completions", openapi_extra=_answers(Completion, Completion))(completions.create_completion)
    post_at_the_door("/v1/chat/completions", openapi_extra=_answers(ChatCompletion, ChatCompletionChunk))(
        completions.create_chat_completion
    )
    post_at_the_door("/v1/embeddings", openapi_extra=_answers(embeddings.EmbeddingList))(embeddings.create_embeddings)
    tokenize, detokenize = tokenizing.build_text_views(Places())
    post("/tokenize", openapi_extra=_answers(tokenizing.Tokenized))(tokenize)
    post("/detokenize", openapi_extra=_answers(tokenizing.Detokenized))(detokenize)
    get = functools.partial(api.get, auth=KeyWithScope("generate", "observe", "operate"), tags=["models"])
    get("/v1/models", openapi_extra=_answers(ModelList))(models.list_models)
    get("/v1/models/{path:model}", openapi_extra=_answers(Model))(models.get_model)


def _add_steering(api: NinjaAPI) -> None:
    get = functools.partial(
        api.get, auth=KeyWithScope("observe", "operate"), tags=["steering"], openapi_extra=_answers(None)
    )
    get("/ops/v1/pools")(ops.list_pools)
    get("/ops/v1/pools/{pool}/tunables")(ops.show_tunables)
    get("/ops/v1/pools/{pool}/tunables/versions")(ops.list_versions)
    get("/ops/v1/pools/{pool}/snapshot")(ops.show_snapshot)
    get("/ops/v1/pools/{pool}/guardrail")(trials.show_guardrail)
    get("/ops/v1/pools/{pool}/canary")(trials.show_canary)
    write: dict[str, Any] = {"auth": KeyWithScope("operate"), "tags": ["steering"], "openapi_extra": _answers(None)}
    api.patch("/ops/v1/pools/{pool}/tunables", **write)(ops.change_tunables)
    api.post("/ops/v1/pools/{pool}/tunables/rollback", **write)(ops.roll_back_tunables)
    api.post("/ops/v1/pools/{pool}/canary/promote", **write)(trials.promote_canary)
    api.post("/ops/v1/pools/{pool}/canary/withdraw", **write)(trials.withdraw_canary)
    calling_off = {**write, "openapi_extra": {**_answers(None), "parameters": trials.CALL_OFF_PARAMETERS}}
    api.delete("/ops/v1/pools/{pool}/guardrail", **calling_off)(trials.delete_guardrail)


def _add_tenants(api: NinjaAPI) -> None:
    plain: dict[str, Any] = {"auth": KeyWithScope("admin"), "tags": ["tenants"], "openapi_extra": _answers(None)}
    making = {**plain, "openapi_extra": _answers(None, status=201)}
    tenant, key = "/ops/v1/tenants/{tenant_id}", "/ops/v1/tenants/{tenant_id}/keys/{prefix}"
    api.get("/ops/v1/tenants", **plain)(tenants.list_tenants)
    api.post("/ops/v1/tenants", **making)(tenants.create_tenant)
    api.get(tenant, **plain)(tenants.show_tenant)
    api.patch(tenant, **plain)(tenants.change_tenant)
    api.get(f"{tenant}/usage", **plain)(tenants.show_usage)
    api.get(f"{tenant}/audit", **plain)(tenants.show_audit)
    api.get(f"{tenant}/quotas/versions", **plain)(tenants.list_tenant_quota_versions)
    api.post(f"{tenant}/quotas/rollback", **plain)(tenants.roll_back_tenant_quotas)
    api.get(f"{tenant}/keys", **plain)(tenant_keys.list_keys)
    api.post(f"{tenant}/keys", **making)(tenant_keys.create_key)
    api.get(key, **plain)(tenant_keys.show_key)
    api.patch(key, **plain)(tenant_keys.change_key)
    api.delete(key, **plain)(tenant_keys.delete_key)
    api.post(f"{key}/revoke", **plain)(tenant_keys.revoke_key)
    api.get(f"{key}/quotas/versions", **plain)(tenant_keys.list_key_quota_versions)
    api.post(f"{key}/quotas/rollback", **plain)(tenant_keys.roll_back_key_quotas)


def _add_health(api: NinjaAPI) -> None:
    api.get("/healthz", tags=["health"], openapi_extra=_answers(None))(health.check_health)
    api.get("/readyz", tags=["health"], openapi_extra=_answers(None))(health.check_readiness)


def _add_metrics(api: NinjaAPI) -> None:
    answers = _answers(None)
    answers["responses"][200]["content"] = {"text/plain": {"schema": {"type": "string"}}}
    extra = {**answers, "parameters": [metrics.NAMES_PARAMETER]}
    api.get("/metrics", auth=KeyWithScope("observe", "operate"), tags=["health"], openapi_extra=extra)(
        metrics.show_metrics
    )


def _answers(whole: type | None, event: type | None = None, *, status: int = 200) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": _schema_of(whole)}}
    if event is not None:
        content["text/event-stream"] = {"schema": _schema_of(event)}
    return {
        "responses": {
            status: {"description": "OK", "content": content},
            "default": {
                "description": "Any error",
                "content": {"application/json": {"schema": _schema_of(ErrorEnvelope)}},
            },
        }
    }


def _schema_of(kind: type | None) -> dict[str, str]:
    return {"type": "object"} if kind is None else {"$ref": _REFERENCE.format(name=kind.__name__)}


def _answer_with_problem(request: HttpRequest, error: Exception | type[Exception]) -> HttpResponse:
    cause = error.__cause__ if isinstance(error, ValidationError) and error.__cause__ is not None else error
    assert isinstance(cause, BaseException), "handlers are given exceptions, whatever their signature says"
    problem = problem_of(cause)
    note_rejection(cast(Any, request).scope, problem.error.code)
    return problem.response()
