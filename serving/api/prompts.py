"""Prompts before and while they are tokenised."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from serving.api.mapping import check_token_ids, estimate_chat_tokens, estimate_prompt_tokens
from serving.contracts.errors import InvalidValue

if TYPE_CHECKING:
    from serving.api.context import Template
    from serving.gateway.pools import PoolView
    from serving.gateway.text.tokenizer import TextModel


@dataclasses.dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt before it is tokenised: the tokens it is taken to have, how to get them, and how many it surely has."""

    estimated_tokens: int
    tokenise: Callable[[], Awaitable[list[int]]]
    certain_tokens: int = 1


def plain_prompt(pool: PoolView, prompt: str | list[int]) -> Prompt:
    """A text, or token ids, to continue. Tokenising raises `InvalidValue` for `prompt`."""
    return Prompt(
        estimate_prompt_tokens(prompt, max_context_tokens=pool.max_model_len),
        functools.partial(_tokenise_plain, pool.text_model, prompt),
        len(prompt) if isinstance(prompt, list) else 1,
    )


def chat_prompt(
    pool: PoolView,
    messages: list[dict[str, Any]],
    *,
    template: Template,
    param: str,
    tools: list[dict[str, Any]] | None = None,
) -> Prompt:
    """A conversation to answer, by the model's own chat template. Tokenising raises `InvalidValue` for `param`, and
    what the template refuses."""
    return Prompt(
        estimate_chat_tokens(messages, tools=tools, max_context_tokens=pool.max_model_len),
        functools.partial(_tokenise_chat, pool.text_model, messages, template=template, tools=tools, param=param),
    )


async def _tokenise_plain(text_model: TextModel, prompt: str | list[int]) -> list[int]:
    if isinstance(prompt, list):
        check_token_ids("prompt", prompt, vocab_size=text_model.vocab_size)
        return prompt
    ids = await text_model.encode_async(prompt, add_special_tokens=True, param="prompt")
    if not ids:
        raise InvalidValue("prompt", prompt, "a text of at least one token")
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
