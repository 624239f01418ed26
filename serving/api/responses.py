"""Answers in OpenAI's shapes, whole and as chunks of a stream. Each chunk is encoded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import UNSET, UnsetType

from serving.api.answers import Answer
from serving.api.bodies import (
    ChatChoice,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionChunk,
    ChatDelta,
    Completion,
    CompletionChoice,
    encode,
)
from serving.api.echo import Echo
from serving.api.logprobs import (
    CompletionLogprobs,
    PromptLogprobs,
    chat_logprobs,
    completion_logprobs,
    echoed_logprobs,
    joined,
    prompt_logprobs,
)
from serving.api.parts import call_deltas, finish_reason_of, message_of, timings_body, usage_body
from serving.gateway.generation import ChoiceDelta, Usage
from serving.gateway.logprobs import PromptEntries, TokenEntry


class Shape(Protocol):
    """One endpoint's way to say what a request produced. Any thread may ask: to tell of a long prompt takes time."""

    def openings(self, num_choices: int) -> list[bytes]:
        """Chunks before any text."""
        ...

    def chunk(self, delta: ChoiceDelta) -> bytes:
        """The chunk of some text."""
        ...

    def usage_chunk(self, usage: Usage) -> bytes:
        """The chunk without choices that counts the tokens."""
        ...

    def whole(self, answers: Sequence[Answer], usage: Usage) -> bytes:
        """The answer in one piece."""
        ...


class ChatShape:
    """Owns nothing that changes: a chat completion's identity, and whether its chunks mention usage.

    With `tells_prompt`, the whole answer says how probable the prompt's tokens are; with `tells_timings`, how long it
    took.
    """

    def __init__(
        self,
        *,
        request_id: str,
        created: int,
        model: str,
        include_usage: bool,
        tells_prompt: bool = False,
        tells_timings: bool = False,
    ) -> None:
        self._tells_prompt = tells_prompt
        self._tells_timings = tells_timings
        self._id = "chatcmpl-" + request_id.removeprefix("req_")
        self._created = created
        self._model = model
        self._no_usage: UnsetType | None = None if include_usage else UNSET

    def openings(self, num_choices: int) -> list[bytes]:
        """The chunk that names the role, a choice."""
        opening = ChatDelta(role="assistant", content="")
        return [self._chunk([ChatChunkChoice(index, opening)]) for index in range(num_choices)]

    def chunk(self, delta: ChoiceDelta) -> bytes:
        """The chunk of some text."""
        calls = call_deltas(delta)
        added = ChatDelta(content=delta.text or UNSET, tool_calls=calls or UNSET)
        logprobs = chat_logprobs(delta.logprobs) if delta.logprobs is not None else None
        return self._chunk([ChatChunkChoice(delta.choice, added, finish_reason_of(delta), logprobs)])

    def usage_chunk(self, usage: Usage) -> bytes:
        """The chunk without choices that counts the tokens."""
        return self._chunk([], usage)

    def whole(self, answers: Sequence[Answer], usage: Usage) -> bytes:
        """The answer in one piece."""
        choices = [
            ChatChoice(
                index,
                message_of(answer),
                answer.finish_reason,
                chat_logprobs(answer.logprobs) if answer.logprobs is not None else None,
            )
            for index, answer in enumerate(answers)
        ]
        return encode(
            ChatCompletion(
                id=self._id,
                created=self._created,
                model=self._model,
                choices=choices,
                usage=usage_body(usage),
                prompt_logprobs=_prompt_logprobs(answers[0]) if self._tells_prompt else UNSET,
                timings=timings_body(usage) if self._tells_timings else UNSET,
            )
        )

    def _chunk(self, choices: list[ChatChunkChoice], usage: Usage | None = None) -> bytes:
        return encode(
            ChatCompletionChunk(
                id=self._id,
                created=self._created,
                model=self._model,
                choices=choices,
                usage=self._no_usage if usage is None else usage_body(usage),
                timings=timings_body(usage) if usage is not None and self._tells_timings else UNSET,
            )
        )


class CompletionShape:
    """Owns nothing that changes: a completion's identity, whether its chunks mention usage, and what it echoes.

    With `tells_prompt`, the whole answer says how probable the prompts' tokens are; with `tells_timings`, how long it
    took.
    """

    def __init__(
        self,
        *,
        request_id: str,
        created: int,
        model: str,
        include_usage: bool,
        tells_prompt: bool = False,
        tells_timings: bool = False,
        echo: Echo | None = None,
    ) -> None:
        self._tells_prompt = tells_prompt
        self._tells_timings = tells_timings
        self._id = "cmpl-" + request_id.removeprefix("req_")
        self._created = created
        self._model = model
        self._no_usage: UnsetType | None = None if include_usage else UNSET
        self._echo = echo

    def openings(self, num_choices: int) -> list[bytes]:
        """An echoed prompt, a choice, where nothing has to be told with it. A completion has no role."""
        echo = self._echo
        if echo is None or echo.with_logprobs:
            return []
        return [self._encode([CompletionChoice(index, echo.text_of(index))]) for index in range(num_choices)]

    def chunk(self, delta: ChoiceDelta) -> bytes:
        """The chunk of some text."""
        text, logprobs = delta.text, self._logprobs(delta.choice, delta.logprobs, delta.prompt)
        if self._echo is not None and self._echo.with_logprobs and delta.prompt is not None:
            text = self._echo.text_of(delta.choice) + text
        return self._encode([CompletionChoice(delta.choice, text, delta.finish_reason, logprobs)])

    def usage_chunk(self, usage: Usage) -> bytes:
        """The chunk without choices that counts the tokens."""
        return self._encode([], usage)

    def whole(self, answers: Sequence[Answer], usage: Usage) -> bytes:
        """The answer in one piece."""
        choices = [
            CompletionChoice(
                index,
                answer.text if self._echo is None else self._echo.text_of(index) + answer.text,
                answer.finish_reason,
                self._logprobs(index, answer.logprobs, answer.prompt),
                _prompt_logprobs(answer) if self._tells_prompt else UNSET,
            )
            for index, answer in enumerate(answers)
        ]
        return self._encode(choices, usage)

    def _logprobs(
        self, choice: int, entries: tuple[TokenEntry, ...] | None, prompt: PromptEntries | None
    ) -> CompletionLogprobs | None:
        """Those of a text's tokens, the echoed prompt's before them."""
        if entries is None:
            return None
        if self._echo is None:
            return completion_logprobs(entries)
        echoed = self._echo.text_of(choice)
        found = completion_logprobs(entries, offset=len(echoed))
        return found if prompt is None else joined(echoed_logprobs(prompt.entries(), echoed), found)

    def _encode(self, choices: list[CompletionChoice], usage: Usage | None = None) -> bytes:
        return encode(
            Completion(
                id=self._id,
                created=self._created,
                model=self._model,
                choices=choices,
                usage=self._no_usage if usage is None else usage_body(usage),
                timings=timings_body(usage) if usage is not None and self._tells_timings else UNSET,
            )
        )


def _prompt_logprobs(answer: Answer) -> PromptLogprobs | UnsetType:
    return UNSET if answer.prompt is None else prompt_logprobs(answer.prompt.entries())
