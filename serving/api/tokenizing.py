"""`POST /tokenize`, `POST /detokenize`, and why there are no embeddings."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

import msgspec
from django.http import HttpRequest, HttpResponse

from serving.api.bodies import encode
from serving.api.context import services_of
from serving.api.generating import find_pool_of_model
from serving.api.mapping import plain_messages
from serving.api.text_schemas import DetokenizeRequest, EmbeddingsRequest, TokenizeRequest
from serving.api.tools import plain_tools
from serving.contracts.errors import InvalidValue, QueueFull

if TYPE_CHECKING:
    from serving.api.context import ApiServices
    from serving.gateway.pools import PoolView

View = Callable[..., Awaitable[HttpResponse]]

_MAX_AT_ONCE = 4
_RETRY_SECONDS = 1.0


class Tokenized(msgspec.Struct, frozen=True):
    """Token ids of a text, how many there are, and the longest prompt and answer together, in tokens."""

    tokens: list[int]
    count: int
    max_model_len: int


class Detokenized(msgspec.Struct, frozen=True):
    """The text of tokens, special ones written out."""

    prompt: str


class NoEmbeddings(InvalidValue):
    """The model makes text and no embeddings."""

    def __init__(self, model: str) -> None:
        super().__init__("model", model, "a model that makes embeddings")
        self.message = f"the model {model!r} makes no embeddings"
        self.args = (self.message,)


class Places:
    """Owns the count of texts that are being tokenised for their own sake; on the event loop.

    Such requests wait for no engine, and so pass no waiting room; `max_at_once` bounds them instead, in each web
    process. More are refused as `queue_full`.
    """

    def __init__(self, *, max_at_once: int = _MAX_AT_ONCE) -> None:
        self._max_at_once = max_at_once
        self._num_taken = 0

    @contextlib.contextmanager
    def take(self) -> Iterator[None]:
        """A place for as long as the block runs; raises `QueueFull` where there is none."""
        if self._num_taken >= self._max_at_once:
            raise QueueFull(f"{self._num_taken} texts are being tokenised already", retry_after_seconds=_RETRY_SECONDS)
        self._num_taken += 1
        try:
            yield
        finally:
            self._num_taken -= 1


def build_text_views(places: Places) -> tuple[View, View]:
    """What `/tokenize` and `/detokenize` do, the work of both within `places`."""

    async def tokenize(request: HttpRequest, body: TokenizeRequest) -> HttpResponse:
        """The tokens of a text, or of a conversation as the model's chat template writes it."""
        services = services_of(request)
        pool = find_pool_of_model(services, body.model)
        with places.take():
            text, adds_special_tokens = _text_of(body, services=services, pool=pool)
            ids = await pool.text_model.encode_async(
                text,
                add_special_tokens=adds_special_tokens if body.add_special_tokens is None else body.add_special_tokens,
                param="prompt" if body.messages is None else "messages",
            )
        return _json(Tokenized(ids, len(ids), pool.max_model_len))

    async def detokenize(request: HttpRequest, body: DetokenizeRequest) -> HttpResponse:
        """The text of tokens, special ones written out."""
        pool = find_pool_of_model(services_of(request), body.model)
        with places.take():
            return _json(Detokenized(await pool.text_model.write_out_async(body.tokens, param="tokens")))

    return tokenize, detokenize


async def create_embeddings(request: HttpRequest, body: EmbeddingsRequest) -> HttpResponse:
    """Refused by name: the models served here make text."""
    raise NoEmbeddings(find_pool_of_model(services_of(request), body.model).model)


def _text_of(body: TokenizeRequest, *, services: ApiServices, pool: PoolView) -> tuple[str, bool]:
    """The text to tokenise, and whether special tokens are added to it where nothing is said of them."""
    if (body.prompt is None) == (body.messages is None):
        raise InvalidValue("prompt", body.prompt, "given, or messages, and not both")
    if body.messages is None:
        for name in ("tools", "add_generation_prompt"):
            if getattr(body, name) is not None:
                raise InvalidValue(name, getattr(body, name), "left out unless there are messages")
        return body.prompt or "", True
    template = services.chat_templates[pool.model]
    text = template.render(
        plain_messages(body.messages),
        tools=plain_tools(body.tools, model=body.model, template=template) if body.tools else None,
        add_generation_prompt=body.add_generation_prompt is not False,
    )
    return text, False


def _json(body: Tokenized | Detokenized) -> HttpResponse:
    return HttpResponse(encode(body), content_type="application/json")
