"""`POST /tokenize` and `POST /detokenize`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import msgspec
from django.http import HttpRequest, HttpResponse

from serving.admission.cancellation import to_its_end
from serving.api.bodies import encode
from serving.api.context import principal_of, services_of
from serving.api.finding import route_of
from serving.api.mapping import plain_messages
from serving.api.places import Places
from serving.api.text_schemas import DetokenizeRequest, TokenizeRequest
from serving.api.tools import plain_tools
from serving.contracts.errors import InvalidValue

if TYPE_CHECKING:
    from serving.api.context import Template

View = Callable[..., Awaitable[HttpResponse]]


class Tokenized(msgspec.Struct, frozen=True):
    """Token ids of a text, how many there are, and the longest prompt and answer together, in tokens."""

    tokens: list[int]
    count: int
    max_model_len: int


class Detokenized(msgspec.Struct, frozen=True):
    """The text of tokens, special ones written out."""

    prompt: str


def build_text_views(places: Places) -> tuple[View, View]:
    """What `/tokenize` and `/detokenize` do, the work of both within `places`."""

    async def tokenize(request: HttpRequest, body: TokenizeRequest) -> HttpResponse:
        """The tokens of a text, or of a conversation as the model's chat template writes it."""
        route = route_of(request, body.model)
        with places.take(principal_of(request).tenant_id):
            text, adds_special_tokens = _text_of(body, template=services_of(request).chat_templates[body.model])
            # Who leaves gives up the place with the thread.
            ids = await to_its_end(
                route.text_model.encode_async(
                    text,
                    add_special_tokens=(
                        adds_special_tokens if body.add_special_tokens is None else body.add_special_tokens
                    ),
                    param="prompt" if body.messages is None else "messages",
                )
            )
        return _json(Tokenized(ids, len(ids), route.max_model_len))

    async def detokenize(request: HttpRequest, body: DetokenizeRequest) -> HttpResponse:
        """The text of tokens, special ones written out."""
        text_model = route_of(request, body.model).text_model
        with places.take(principal_of(request).tenant_id):
            text = await to_its_end(text_model.write_out_async(body.tokens, param="tokens"))
        return _json(Detokenized(text))

    return tokenize, detokenize


def _text_of(body: TokenizeRequest, *, template: Template) -> tuple[str, bool]:
    """The text to tokenise, and whether special tokens are added to it where nothing is said of them."""
    if (body.prompt is None) == (body.messages is None):
        raise InvalidValue("prompt", body.prompt, "given, or messages, and not both")
    if body.messages is None:
        for name in ("tools", "add_generation_prompt"):
            if getattr(body, name) is not None:
                raise InvalidValue(name, getattr(body, name), "left out unless there are messages")
        return body.prompt or "", True
    text = template.render(
        plain_messages(body.messages),
        tools=plain_tools(body.tools, model=body.model, template=template) if body.tools else None,
        add_generation_prompt=body.add_generation_prompt is not False,
    )
    return text, False


def _json(body: Tokenized | Detokenized) -> HttpResponse:
    return HttpResponse(encode(body), content_type="application/json")
