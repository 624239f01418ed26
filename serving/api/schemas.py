"""Bodies of requests, checked strictly: a number in quotes is no number, and a name that is not known is refused.

`null` counts as absent everywhere. `x-bounds` says in words what a field admits: documentation and error messages use
the same words.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from serving.api.compatibility import drop_fields_without_effect
from serving.api.strict import MAX_INT as _INT32
from serving.api.strict import StrictModel
from serving.api.strict import admitting as admitting
from serving.api.tool_schemas import MAX_TOOLS, NamedToolChoice, Tool
from serving.contracts.messages import MAX_PRIORITY
from serving.contracts.sampling import MAX_GRAMMAR_BYTES, MAX_LOGIT_BIASES, MAX_LOGPROBS

MAX_CHOICES = 16
MAX_PROMPTS = 16
MAX_STOPS = 4
MAX_STOP_CHARACTERS = 256
MAX_CACHE_SALT_CHARACTERS = 256
MAX_STOP_TOKEN_IDS = 128
MAX_TIMEOUT_SECONDS = 3600
MAX_MESSAGES = 4096


class StreamOptions(StrictModel):
    """What a stream tells beside its text."""

    include_usage: bool | None = admitting("true or false", about="Whether a last chunk counts the tokens")
    include_obfuscation: Literal[False] | None = admitting("false: chunks are not padded")


class GenerationRequest(StrictModel):
    """What completions and chat completions have in common."""

    model: str = admitting("the name of a model that /v1/models lists", default=..., min_length=1, max_length=200)
    max_tokens: int | None = admitting(
        "an integer of at least 1", about="Most tokens to generate, a choice", ge=1, le=_INT32
    )
    min_tokens: int | None = admitting(
        "an integer from 0 to max_tokens", about="Tokens before the text may end by itself", ge=0, le=_INT32
    )
    temperature: float | None = admitting("a number from 0 to 2", about="0 takes the most probable token", ge=0, le=2)
    top_p: float | None = admitting("a number from 0 to 1", about="0 takes the most probable token", ge=0, le=1)
    top_k: int | None = admitting("an integer of at least -1", about="0 and -1 are off", ge=-1, le=_INT32)
    min_p: float | None = admitting("a number from 0 to 1", ge=0, le=1)
    presence_penalty: float | None = admitting(
        "a number from -2 to 2", about="Taken off the logits of tokens that were generated before", ge=-2, le=2
    )
    frequency_penalty: float | None = admitting(
        "a number from -2 to 2", about="The same, for each time that they were", ge=-2, le=2
    )
    repetition_penalty: float | None = admitting(
        "a number from 0.01 to 10",
        about="Divides the logits of tokens of prompt and answer (multiplies them, where negative); 1 is off",
        ge=0.01,
        le=10,
    )
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = admitting(
        f"an object of up to {MAX_LOGIT_BIASES} ids of the model's vocabulary, in quotes, and numbers from -100 to 100",
        about="Added to the logits of these tokens",
        max_length=MAX_LOGIT_BIASES,
    )
    prompt_logprobs: int | None = admitting(
        f"an integer from 0 to {MAX_LOGPROBS}, for whole answers only",
        about="Tell how probable the prompt's tokens are, and as many most probable ones at each place",
        ge=0,
        le=MAX_LOGPROBS,
    )
    priority: int | None = admitting(
        f"an integer from -{MAX_PRIORITY} to {MAX_PRIORITY}",
        about="The lower, the sooner served, where the pool's order is priority",
        ge=-MAX_PRIORITY,
        le=MAX_PRIORITY,
    )
    cache_salt: str | None = admitting(
        f"a text of up to {MAX_CACHE_SALT_CHARACTERS} characters",
        about="Only requests of the same tenant with the same salt share what is cached of their prompts",
        max_length=MAX_CACHE_SALT_CHARACTERS,
    )
    timeout: float | None = admitting(
        f"a number of seconds above 0, up to {MAX_TIMEOUT_SECONDS}",
        about="How long the request may wait to be served; what is being served goes on",
        gt=0,
        le=MAX_TIMEOUT_SECONDS,
    )
    pool: str | None = admitting(
        "the name of a pool that serves the model and that the tenant may use",
        about="Which pool runs the request; where left out, the tenant's first that can, or the one for long prompts",
        min_length=1,
        max_length=64,
    )
    n: int | None = admitting(f"an integer from 1 to {MAX_CHOICES}", about="Choices", ge=1, le=MAX_CHOICES)
    seed: int | None = admitting(
        "an integer of 64 bits", about="The same seed gives the same text", ge=-(2**63), le=2**63 - 1
    )
    stop: (
        Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]
        | Annotated[
            list[Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARACTERS)]], Field(max_length=MAX_STOPS)
        ]
        | None
    ) = admitting(
        f"a text of 1 to {MAX_STOP_CHARACTERS} characters, or a list of up to {MAX_STOPS} of them",
        about="Texts before which the answer ends",
    )
    stop_token_ids: list[Annotated[int, Field(ge=0, le=_INT32)]] | None = admitting(
        f"a list of up to {MAX_STOP_TOKEN_IDS} ids of the model's vocabulary",
        about="Tokens at which the answer ends",
        max_length=MAX_STOP_TOKEN_IDS,
    )
    ignore_eos: bool | None = admitting("true or false", about="Whether to go on after an end-of-text token")
    response_format: dict[str, Any] | None = admitting(
        '{"type": "text"}, {"type": "json_object"} or {"type": "json_schema", "json_schema": {"name": …, "schema": …}}',
        about="What the answer must be; at most one of response_format, regex and grammar",
    )
    regex: str | None = admitting(
        f"a regular expression of 1 to {MAX_GRAMMAR_BYTES} bytes, without look-around and back references",
        about="What the whole answer must match",
        min_length=1,
        max_length=MAX_GRAMMAR_BYTES,
    )
    grammar: str | None = admitting(
        f"a grammar of 1 to {MAX_GRAMMAR_BYTES} bytes in llguidance's variant of Lark",
        about="What the answer must be",
        min_length=1,
        max_length=MAX_GRAMMAR_BYTES,
    )
    stream: bool | None = admitting("true or false", about="Whether to send the text as it comes")
    stream_options: StreamOptions | None = admitting("an object with include_usage", about="For streams only")

    timings: bool | None = admitting(
        "true or false",
        about="Whether to tell, with the count of tokens, how long the request waited, was read and was answered",
    )

    @field_validator("logit_bias", mode="before")
    @classmethod
    def _count_biases_first(cls, value: Any) -> Any:
        """Before each is looked at, and each fault listed."""
        if isinstance(value, dict) and len(value) > MAX_LOGIT_BIASES:
            raise ValueError("too many")
        return value

    @model_validator(mode="before")
    @classmethod
    def _drop_what_has_no_effect(cls, values: Any) -> Any:
        return drop_fields_without_effect(values, supported=cls.model_fields) if isinstance(values, dict) else values

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a count of tokens, as it does where timings are to be told with it."""
        asked = self.stream_options is not None and self.stream_options.include_usage is True
        return asked or self.timings is True


# The first fault is told, and no other looked for: a body may have hundreds of thousands, which take seconds to list.
TokenIds = Annotated[list[Annotated[int, Field(ge=0, le=_INT32)]], Field(min_length=1, fail_fast=True)]
PromptText = Annotated[str, Field(min_length=1)]


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`. `max_tokens` is 16 where it is left out."""

    max_tokens: int | None = admitting(
        "an integer of at least 1 (0 with echo)", about="Most tokens to generate, a choice", ge=0, le=_INT32
    )
    logprobs: int | None = admitting(
        f"an integer from 0 to {MAX_LOGPROBS}",
        about="Tell how probable each token is, and as many most probable ones at its place",
        ge=0,
        le=MAX_LOGPROBS,
    )
    echo: bool | None = admitting("true or false", about="Whether the text begins with the prompt")
    best_of: int | None = admitting(
        f"an integer from n to {MAX_CHOICES}; n where stream is true",
        about="Texts to generate, of which the n with the highest mean log probability a token are given",
        ge=1,
        le=MAX_CHOICES,
    )
    prompt: (
        PromptText
        | TokenIds
        | Annotated[list[PromptText], Field(min_length=1, max_length=MAX_PROMPTS)]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_PROMPTS)]
    ) = admitting(
        f"a text or a list of token ids, not empty, or a list of up to {MAX_PROMPTS} of either",
        about="With several prompts, the choices of the first come first",
        default=...,
    )


class TextPart(StrictModel):
    """A piece of a message. Only text is supported: nothing that a message names is ever fetched."""

    type: Literal["text"] = admitting("'text', the only kind of content supported", default=...)
    text: str = admitting("a text", default=...)


_ANSWERS_FIELDS = frozenset({"annotations", "audio", "function_call"})


class Message(StrictModel):
    """One message of a conversation. The role `developer` is read as `system`."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"] = admitting(
        "one of system, developer, user, assistant, tool, function", default=...
    )
    content: str | Annotated[list[TextPart], Field(fail_fast=True)] | None = admitting("a text or a list of text parts")
    name: str | None = admitting("a text of up to 100 characters", max_length=100)
    tool_calls: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = admitting(
        "a list of objects", about="Calls that the assistant made"
    )
    tool_call_id: str | None = admitting("a text", about="The call that a tool's message answers", max_length=200)
    refusal: str | None = admitting("a text", about="Sent back by clients; without effect")

    @model_validator(mode="before")
    @classmethod
    def _drop_what_clients_send_back(cls, values: Any) -> Any:
        """Clients that append an answer to the conversation send its empty fields back."""
        if not isinstance(values, dict):
            return values
        return {name: value for name, value in values.items() if value is not None or name not in _ANSWERS_FIELDS}


class ChatCompletionRequest(GenerationRequest):
    """`POST /v1/chat/completions`. Without a limit on tokens, the answer may fill the rest of the context."""

    messages: list[Message] = admitting(
        "a list of messages, not empty", default=..., min_length=1, max_length=MAX_MESSAGES
    )
    max_completion_tokens: int | None = admitting(
        "an integer of at least 1", about="OpenAI's newer name of max_tokens", ge=1, le=_INT32
    )
    tools: list[Tool] | None = admitting(
        f"a list of up to {MAX_TOOLS} functions, for models whose chat template knows tools",
        about="What the model may call",
        max_length=MAX_TOOLS,
    )
    tool_choice: Literal["none", "auto", "required"] | NamedToolChoice | None = admitting(
        "none, auto, required, or an object that names one of the tools",
        about="Whether tools may or must be called; a call that must be made is one, and its arguments are kept to "
        "their schema",
    )
    parallel_tool_calls: bool | None = admitting(
        "true or false", about="Whether an answer may call more than once: if not, its first call alone is told"
    )
    logprobs: bool | None = admitting("true or false", about="Whether to tell how probable each token is")
    top_logprobs: int | None = admitting(
        f"an integer from 0 to {MAX_LOGPROBS}, with logprobs",
        about="As many most probable tokens at each place",
        ge=0,
        le=MAX_LOGPROBS,
    )
