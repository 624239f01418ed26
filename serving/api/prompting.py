"""What the console asks of a model: the prompt box one message, the playground what the API takes."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import secrets
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from serving.admission.accounts import Account
from serving.admission.console_account import CONSOLE_TENANT
from serving.api.context import Stream, Template
from serving.api.entering import NewRequest, Output, ParamsFor
from serving.api.generating import output_of
from serving.api.mapping import check_request, choose_seed, messages_of, prompts_of, sampling_of, stops_of
from serving.api.playground import Endpoint, read_body
from serving.api.prompts import Prompt, chat_prompt, plain_prompt
from serving.api.routing import Route
from serving.api.schemas import ChatCompletionRequest, CompletionRequest, GenerationRequest
from serving.api.starting import Starter
from serving.contracts.errors import ContextLengthExceeded, PermissionDenied, PoolNotFound
from serving.contracts.ids import RequestId
from serving.contracts.sampling import SamplingParams

if TYPE_CHECKING:
    from serving.gateway.pools import PoolView


async def on_nobodys_account() -> Account:
    """For a console whose prompts are counted nowhere."""
    return Account()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prompter:
    """Asks a pool's model for operators. Owns nothing; used on the gateway's event loop.

    `chat_templates` are by the model's name. `read_account` gives the account that prompts are charged to now, or
    raises the `DomainError` of one that may not be used.
    """

    starter: Starter
    chat_templates: Mapping[str, Template]
    read_account: Callable[[], Awaitable[Account]] = on_nobodys_account

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
        `QueueFull`, `QuotaExceeded`, `PromptTooLong`, `Unavailable` and what `read_account` does. What fails later
        comes through the stream: its `started` raises what the engine refuses.
        """
        view = self._find_pool(pool)
        route = Route(view)
        params = SamplingParams(max_tokens=max_tokens, seed=secrets.randbits(63), temperature=temperature)
        messages: list[dict[str, Any]] = [{"role": "user", "content": text}]
        return await self._start(
            route,
            prompt=chat_prompt(route, messages, template=self.chat_templates[view.model], param="text"),
            params_for=functools.partial(_fit, params),
            output=Output(max_tokens),
            request_id=request_id,
            arrived_at=arrived_at,
            cleanup=cleanup,
        )

    async def play(
        self,
        pool: str,
        endpoint: Endpoint,
        given: Mapping[str, Any],
        *,
        request_id: str,
        arrived_at: float,
        cleanup: contextlib.AsyncExitStack,
    ) -> Stream:
        """Start what the body `given`, one of the API's, asks of the pool; it means what it means there.

        Raises as `prompt`, and what `read_body` does.
        """
        view = self._find_pool(pool)
        route = Route(view)
        body = read_body(endpoint, given, model=view.model, pool=pool)
        check_request(body, vocab_size=route.text_model.vocab_size)
        return await self._start(
            route,
            prompt=self._prompt_of(body, route),
            params_for=functools.partial(sampling_of, body, seed=choose_seed(body)),
            stop=stops_of(body),
            output=output_of(body),
            request_id=request_id,
            arrived_at=arrived_at,
            cleanup=cleanup,
        )

    def _prompt_of(self, body: GenerationRequest, route: Route) -> Prompt:
        if isinstance(body, ChatCompletionRequest):
            return chat_prompt(route, messages_of(body), template=self.chat_templates[body.model], param="messages")
        assert isinstance(body, CompletionRequest), "there are two kinds of bodies"
        (prompt,) = prompts_of(body)
        return plain_prompt(route, prompt)

    async def _start(
        self,
        route: Route,
        *,
        prompt: Prompt,
        params_for: ParamsFor,
        output: Output,
        request_id: str,
        arrived_at: float,
        cleanup: contextlib.AsyncExitStack,
        stop: tuple[str, ...] = (),
    ) -> Stream:
        account = await self.read_account()
        pool = str(route.home.name)
        if account.pools is not None and pool not in account.pools:
            raise PermissionDenied(f"prompts from the console may not use the pool {pool!r}: its tenant has others")
        request = NewRequest(
            request_id=RequestId(request_id),
            route=route,
            tenant=CONSOLE_TENANT if account.tenant_id is None else f"tenant:{account.tenant_id}",
            prompts=[prompt],
            num_choices=1,
            params_for=params_for,
            stop=stop,
            arrived_at=arrived_at,
            output=output,
            account=account,
            is_streamed=True,
        )
        return (await self.starter.start(request, cleanup=cleanup)).stream

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
