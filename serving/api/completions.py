"""`POST /v1/completions` and `POST /v1/chat/completions`."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from serving.api.context import scope_of, services_of
from serving.api.generating import Prompt, answer, find_pool_for
from serving.api.mapping import (
    check_token_ids,
    estimate_chat_tokens,
    estimate_prompt_tokens,
    messages_of,
    prompts_of,
)
from serving.api.responses import ChatShape, CompletionShape
from serving.api.schemas import ChatCompletionRequest, CompletionRequest
from serving.contracts.errors import InvalidValue

if TYPE_CHECKING:
    from serving.api.context import Template
    from serving.gateway.text.tokenizer import TextModel


async def create_completion(request: HttpRequest, body: CompletionRequest) -> HttpResponseBase:
    """Continue a text."""
    pool = find_pool_for(services_of(request), body)
    prompts = [
        Prompt(
            estimate_prompt_tokens(prompt, max_context_tokens=pool.max_model_len),
            functools.partial(_tokenise_prompt, pool.text_model, prompt),
        )
        for prompt in prompts_of(body)
    ]
    shape = CompletionShape(
        request_id=scope_of(request).request_id,
        created=int(time.time()),
        model=body.model,
        include_usage=body.include_usage,
    )
    return await answer(request, body, pool=pool, prompts=prompts, shape=shape)


async def create_chat_completion(request: HttpRequest, body: ChatCompletionRequest) -> HttpResponseBase:
    """Answer a conversation, by the model's own chat template."""
    services = services_of(request)
    pool = find_pool_for(services, body)
    template = services.chat_templates[pool.model]
    messages = messages_of(body)
    prompt = Prompt(
        estimate_chat_tokens(messages, max_context_tokens=pool.max_model_len),
        functools.partial(_tokenise_messages, pool.text_model, template, messages),
    )
    shape = ChatShape(
        request_id=scope_of(request).request_id,
        created=int(time.time()),
        model=body.model,
        include_usage=body.include_usage,
    )
    return await answer(request, body, pool=pool, prompts=[prompt], shape=shape)


async def _tokenise_prompt(text_model: TextModel, prompt: str | list[int]) -> list[int]:
    if isinstance(prompt, list):
        check_token_ids("prompt", prompt, vocab_size=text_model.vocab_size)
        return prompt
    ids = await text_model.encode_async(prompt, add_special_tokens=True, param="prompt")
    if not ids:
        raise InvalidValue("prompt", prompt, "a text of at least one token")
    return ids


async def _tokenise_messages(text_model: TextModel, template: Template, messages: list[dict[str, Any]]) -> list[int]:
    text = template.render(messages, add_generation_prompt=True)
    # The template has written the special tokens itself.
    ids = await text_model.encode_async(text, add_special_tokens=False, param="messages")
    if not ids:
        raise InvalidValue("messages", messages, "a conversation of at least one token")
    return ids
