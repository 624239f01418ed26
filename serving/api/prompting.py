"""What the console's prompt box asks for: one message to a model, one answer."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from serving.api.context import Stream, Template
from serving.api.prompts import chat_prompt
from serving.api.starting import NewRequest, Output, Starter
from serving.contracts.errors import ContextLengthExceeded, PoolNotFound
from serving.contracts.ids import RequestId
from serving.contracts.sampling import SamplingParams

if TYPE_CHECKING:
    from serving.gateway.pools import PoolView

CONSOLE_TENANT = "console"
"""Under whose name the operators' own prompts wait and are counted."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prompter:
    """Asks a pool's model for operators. Owns nothing; used on the gateway's event loop.

    `chat_templates` are by the model's name.
    """

    starter: Starter
    chat_templates: Mapping[str, Template]

    async def prompt(
        self,
        pool: str,
        text: str,
        *,
        max_tokens: int,
        temperature: float,
        request_id: str,
        arrived_at: float,
        cleanup: contextlib.AsyncExitStack,
    ) -> Stream:
        """Start an answer to one user message, under a random seed; `cleanup` ends what still runs of it.

        `max_tokens` is shortened to what the context leaves. `arrived_at` is in seconds of the monotonic clock.

        Raises `PoolNotFound`, `InvalidValue`, `ContextLengthExceeded` for a text that leaves no room for any answer,
        `QueueFull` and `Unavailable`. What fails later comes through the stream: its `started` raises what the engine
        refuses.
        """
        view = self._find_pool(pool)
        params = SamplingParams(max_tokens=max_tokens, seed=secrets.randbits(63), temperature=temperature)
        messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
        request = NewRequest(
            request_id=RequestId(request_id),
            pool=view,
            tenant=CONSOLE_TENANT,
            prompts=[chat_prompt(view, messages, template=self.chat_templates[view.model], param="text")],
            num_choices=1,
            params_for=functools.partial(_fit, params, max_context_tokens=view.max_model_len),
            stop=(),
            arrived_at=arrived_at,
            output=Output(max_tokens),
        )
        return await self.starter.start(request, cleanup=cleanup)

    def _find_pool(self, name: str) -> PoolView:
        for view in self.starter.gateway.pools():
            if view.name == name:
                return view
        raise PoolNotFound(f"this web process serves no pool {name!r}")


def _fit(params: SamplingParams, num_prompt_tokens: int, *, max_context_tokens: int) -> SamplingParams:
    rest = max_context_tokens - num_prompt_tokens
    if rest < 1:
        raise ContextLengthExceeded(
            f"the text has {num_prompt_tokens} tokens with the model's chat template; its context of "
            f"{max_context_tokens} tokens leaves no room for an answer",
            param="text",
        )
    return msgspec.structs.replace(params, max_tokens=min(params.max_tokens, rest))
