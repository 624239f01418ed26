"""Bodies of requests, checked strictly: a number in quotes is no number, and a name that is not known is refused.

`null` counts as absent everywhere. `x-bounds` says in words what a field admits: documentation and error messages use
the same words.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from serving.api.compatibility import drop_fields_without_effect
from serving.contracts.messages import MAX_PRIORITY
from serving.contracts.sampling import MAX_LOGIT_BIASES, MAX_LOGPROBS

MAX_CHOICES = 16
MAX_PROMPTS = 16
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256
MAX_CACHE_SALT_CHARACTERS = 256
MAX_STOP_TOKEN_IDS = 128
MAX_MESSAGES = 4096
_INT32 = 2**31 - 1


def _admitting(bounds: str, *, about: str = "", default: Any = None, **constraints: Any) -> Any:
    description = f"{about}: {bounds}." if about else f"{bounds[0].upper()}{bounds[1:]}."
    return Field(default, description=description, json_schema_extra={"x-bounds": bounds}, **constraints)


class StrictModel(BaseModel):
    """Values of the declared types and no others."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False, protected_namespaces=())


class StreamOptions(StrictModel):
    """What a stream tells beside its text."""

    include_usage: bool | None = _admitting("true or false", about="Whether a last chunk counts the tokens")


class GenerationRequest(StrictModel):
    """What completions and chat completions have in common."""

    model: str = _admitting("the name of a model that /v1/models lists", default=..., min_length=1, max_length=200)
    max_tokens: int | None = _admitting(
        "an integer of at least 1", about="Most tokens to generate, a choice", ge=1, le=_INT32
    )
    min_tokens: int | None = _admitting(
        "an integer from 0 to max_tokens", about="Tokens before the text may end by itself", ge=0, le=_INT32
    )
    temperature: float | None = _admitting("a number from 0 to 2", about="0 takes the most probable token", ge=0, le=2)
    top_p: float | None = _admitting("a number from 0 to 1", about="0 takes the most probable token", ge=0, le=1)
    top_k: int | None = _admitting("an integer of at least -1", about="0 and -1 are off", ge=-1, le=_INT32)
    min_p: float | None = _admitting("a number from 0 to 1", ge=0, le=1)
    presence_penalty: float | None = _admitting(
        "a number from -2 to 2", about="Taken off the logits of tokens that were generated before", ge=-2, le=2
    )
    frequency_penalty: float | None = _admitting(
        "a number from -2 to 2", about="The same, for each time that they were", ge=-2, le=2
    )
    repetition_penalty: float | None = _admitting(
        "a number from 0.01 to 10",
        about="Divides the logits of tokens of prompt and answer (multiplies them, where negative); 1 is off",
        ge=0.01,
        le=10,
    )
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = _admitting(
        f"an object of up to {MAX_LOGIT_BIASES} ids of the model's vocabulary, in quotes, and numbers from -100 to 100",
        about="Added to the logits of these tokens",
        max_length=MAX_LOGIT_BIASES,
    )
    prompt_logprobs: int | None = _admitting(
        f"an integer from 0 to {MAX_LOGPROBS}, for whole answers only",
        about="Tell how probable the prompt's tokens are, and as many most probable ones at each place",
        ge=0,
        le=MAX_LOGPROBS,
    )
    priority: int | None = _admitting(
        f"an integer from -{MAX_PRIORITY} to {MAX_PRIORITY}",
        about="The lower, the sooner served, where the pool's order is priority",
        ge=-MAX_PRIORITY,
        le=MAX_PRIORITY,
    )
    cache_salt: str | None = _admitting(
        f"a text of up to {MAX_CACHE_SALT_CHARACTERS} characters",
        about="Only requests of the same tenant with the same salt share what is cached of their prompts",
        max_length=MAX_CACHE_SALT_CHARACTERS,
    )
    n: int | None = _admitting(f"an integer from 1 to {MAX_CHOICES}", about="Choices", ge=1, le=MAX_CHOICES)
    seed: int | None = _admitting(
        "an integer of 64 bits", about="The same seed gives the same text", ge=-(2**63), le=2**63 - 1
    )
    stop: (
        Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
        | Annotated[
            list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]], Field(max_length=MAX_STOPS)
        ]
        | None
    ) = _admitting(
        f"a text of 1 to {MAX_STOP_CHARACTERS} characters, or a list of up to {MAX_STOPS} of them",
        about="Texts before which the answer ends",
    )
    stop_token_ids: list[Annotated[int, Field(ge=0, le=_INT32)]] | None = _admitting(
        f"a list of up to {MAX_STOP_TOKEN_IDS} ids of the model's vocabulary",
        about="Tokens at which the answer ends",
        max_length=MAX_STOP_TOKEN_IDS,
    )
    ignore_eos: bool | None = _admitting("true or false", about="Whether to go on after an end-of-text token")
    stream: bool | None = _admitting("true or false", about="Whether to send the text as it comes")
    stream_options: StreamOptions | None = _admitting("an object with include_usage", about="For streams only")

    @model_validator(mode="before")
    @classmethod
    def _drop_what_has_no_effect(cls, values: Any) -> Any:
        return drop_fields_without_effect(values) if isinstance(values, dict) else values

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a count of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage is True


TokenIds = Annotated[list[Annotated[int, Field(ge=0, le=_INT32)]], Field(min_length=1)]
PromptText = Annotated[str, Field(min_length=1)]


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`. `max_tokens` is 16 where it is left out."""

    max_tokens: int | None = _admitting(
        "an integer of at least 1 (0 with echo)", about="Most tokens to generate, a choice", ge=0, le=_INT32
    )
    logprobs: int | None = _admitting(
        f"an integer from 0 to {MAX_LOGPROBS}",
        about="Tell how probable each token is, and as many most probable ones at its place",
        ge=0,
        le=MAX_LOGPROBS,
    )
    echo: bool | None = _admitting("true or false", about="Whether the text begins with the prompt")
    prompt: (
        PromptText
        | TokenIds
        | Annotated[list[PromptText], Field(min_length=1, max_length=MAX_PROMPTS)]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)]
    ) = _admitting(
        f"a text or a list of token ids, not empty, or a list of up to {MAX_PROMPTS} of either",
        about="With several prompts, the choices of the first come first",
        default=...,
    )


class TextPart(StrictModel):
    """A piece of a message. Only text is supported: nothing that a message names is ever fetched."""

    type: Literal["text"] = _admitting("'text', the only kind of content supported", default=...)
    text: str = _admitting("a text", default=...)


_ANSWERS_FIELDS = frozenset({"annotations", "audio", "function_call"})


class Message(StrictModel):
    """One message of a conversation. The role `developer` is read as `system`."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"] = _admitting(
        "one of system, developer, user, assistant, tool, function", default=...
    )
    content: str | list[TextPart] | None = _admitting("a text or a list of text parts")
    name: str | None = _admitting("a text of up to 100 characters", max_length=100)
    tool_calls: list[dict[str, Any]] | None = _admitting("a list of objects", about="Calls that the assistant made")
    tool_call_id: str | None = _admitting("a text", about="The call that a tool's message answers", max_length=200)
    refusal: str | None = _admitting("a text", about="Sent back by clients; without effect")

    @model_validator(mode="before")
    @classmethod
    def _drop_what_clients_send_back(cls, values: Any) -> Any:
        """Clients that append an answer to the conversation send its empty fields back."""
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value is not None or name not in _ANSWERS_FIELDS}


class ChatCompletionRequest(GenerationRequest):
    """`POST /v1/chat/completions`. Without a limit on tokens, the answer may fill the rest of the context."""

    messages: list[Message] = _admitting(
        "a list of messages, not empty", default=..., min_length=1, max_length=MAX_MESSAGES
    )
    max_completion_tokens: int | None = _admitting(
        "an integer of at least 1", about="OpenAI's newer name of max_tokens", ge=1, le=_INT32
    )
    logprobs: bool | None = _admitting("true or false", about="Whether to tell how probable each token is")
    top_logprobs: int | None = _admitting(
        f"an integer from 0 to {MAX_LOGPROBS}, with logprobs",
        about="As many most probable tokens at each place",
        ge=0,
        le=MAX_LOGPROBS,
    )


class TunablesChange(StrictModel):
    """`PATCH /ops/v1/pools/{pool}/tunables`."""

    changes: dict[str, Any] = _admitting("an object of tunables and their new values", default=..., min_length=1)
    reason: str | None = _admitting("a text of up to 500 characters", about="Why", max_length=500)
    based_on: int | None = _admitting(
        "the number of a version", about="Refuse the change where another version is in force by now", ge=1
    )


class Rollback(StrictModel):
    """`POST /ops/v1/pools/{pool}/tunables/rollback`."""

    version: int = _admitting("the number of a stored version", default=..., ge=1, le=_INT32)
    reason: str | None = _admitting("a text of up to 500 characters", about="Why", max_length=500)
    based_on: int | None = _admitting(
        "the number of a version", about="Refuse to roll back where another version is in force by now", ge=1
    )
