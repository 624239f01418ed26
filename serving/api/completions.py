"""`POST /v1/completions` and `POST /v1/chat/completions`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from django.http import HttpRequest
from django.http.response import HttpResponseBase

from serving.api.context import scope_of, services_of
from serving.api.echo import Echo
from serving.api.generating import answer, find_route_for
from serving.api.mapping import messages_of, num_choices_of, prompts_of
from serving.api.prompts import chat_prompt, plain_prompt
from serving.api.responses import ChatShape, CompletionShape
from serving.api.schemas import ChatCompletionRequest, CompletionRequest
from serving.api.tools import tool_use_of

if TYPE_CHECKING:
    from serving.api.routing import Route


async def create_completion(request: HttpRequest, body: CompletionRequest) -> HttpResponseBase:
    """Continue a text."""
    route = await find_route_for(request, body)
    prompts = [plain_prompt(route, prompt) for prompt in prompts_of(body)]
    shape = CompletionShape(
        request_id=scope_of(request).request_id,
        created=int(time.time()),
        model=body.model,
        include_usage=body.include_usage,
        tells_prompt=body.prompt_logprobs is not None,
        tells_timings=body.timings is True,
        echo=_echo_of(body, route) if body.echo else None,
    )
    return await answer(request, body, route=route, prompts=prompts, shape=shape)


async def create_chat_completion(request: HttpRequest, body: ChatCompletionRequest) -> HttpResponseBase:
    """Answer a conversation, by the model's own chat template."""
    route = await find_route_for(request, body)
    template = services_of(request).chat_templates[body.model]
    tool_use = tool_use_of(body, template=template)
    tools = None if tool_use is None else tool_use.shown
    prompt = chat_prompt(route, messages_of(body), template=template, param="messages", tools=tools)
    shape = ChatShape(
        request_id=scope_of(request).request_id,
        created=int(time.time()),
        model=body.model,
        include_usage=body.include_usage,
        tells_prompt=body.prompt_logprobs is not None,
        tells_timings=body.timings is True,
    )
    return await answer(request, body, route=route, prompts=[prompt], shape=shape, tool_use=tool_use)


def _echo_of(body: CompletionRequest, route: Route) -> Echo:
    """The prompts as they were sent; of token ids, their text."""
    texts = [prompt if isinstance(prompt, str) else route.text_model.decode(prompt) for prompt in prompts_of(body)]
    return Echo(tuple(texts), num_choices_of(body), with_logprobs=body.logprobs is not None)
