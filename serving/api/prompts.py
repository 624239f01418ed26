"""Prompts before and while they are tokenised."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from serving.admission.estimates import PromptLength
from serving.api.mapping import check_token_ids, estimate_chat_tokens, estimate_text_tokens
from serving.contracts.errors import InvalidValue

if TYPE_CHECKING:
    from serving.api.context import Template
    from serving.api.routing import Route
    from serving.gateway.text.tokenizer import TextModel


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt before it is tokenised: what is known of its length, and how to get its tokens."""

    length: PromptLength
    tokenise: Callable[[], Awaitable[list[int]]]


def plain_prompt(route: Route, prompt: str | list[int], *, param: str = "prompt") -> Prompt:
    """A text, or token ids, to continue. Tokenising raises `InvalidValue` for `param`."""
    tokenise = functools.partial(_tokenise_plain, route.text_model, prompt, param=param)
    if isinstance(prompt, list):
        return Prompt(PromptLength.exactly(len(prompt)), tokenise)
    guess = estimate_text_tokens(prompt, max_context_tokens=route.max_model_len)
    return Prompt(PromptLength(1, guess, route.max_model_len), tokenise)


def chat_prompt(
    route: Route,
    messages: list[dict[str, Any]],
    *,
    template: Template,
    param: str,
    tools: list[dict[str, Any]] | None = None,
) -> Prompt:
    """A conversation to answer, by the model's own chat template. Tokenising raises `InvalidValue` for `param`, and
    what the template refuses."""
    guess = estimate_chat_tokens(messages, tools=tools, max_context_tokens=route.max_model_len)
    return Prompt(
        PromptLength(1, guess, route.max_model_len),
        functools.partial(_tokenise_chat, route.text_model, messages, template=template, tools=tools, param=param),
    )


async def _tokenise_plain(text_model: TextModel, prompt: str | list[int], *, param: str) -> list[int]:
    if isinstance(prompt, list):
        check_token_ids(param, prompt, vocab_size=text_model.vocab_size)
        return prompt
    ids = await text_model.encode_async(prompt, add_special_tokens=True, param=param)
    if not ids:
        raise InvalidValue(param, prompt, "a text of at least one token")
    return ids


async def _tokenise_chat(
    text_model: TextModel,
    messages: list[dict[str, Any]],
    *,
    template: Template,
    tools: list[dict[str, Any]] | None,
    param: str,
) -> list[int]:
    text = template.render(messages, tools=tools, add_generation_prompt=True)
    # The template has written the special tokens itself.
    ids = await text_model.encode_async(text, add_special_tokens=False, param=param)
    if not ids:
        raise InvalidValue(param, messages, "a conversation of at least one token")
    return ids
