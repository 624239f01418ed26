"""Bodies of requests about text that nothing is generated for, checked as strictly as all others."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from serving.api.schemas import MAX_MESSAGES, Message, PromptText, TokenIds
from serving.api.strict import MAX_INT, StrictModel, admitting
from serving.api.tool_schemas import MAX_TOOLS, Tool

MAX_INPUTS = 128
"""To embed at once: half of the queue that a pool has by itself."""
MODEL_BOUNDS = "the name of a model that /v1/models lists"


class TokenizeRequest(StrictModel):
    """`POST /tokenize`: a text, or a conversation as the model's chat template writes it."""

    model: str = admitting(MODEL_BOUNDS, default=..., min_length=1, max_length=200)
    prompt: str | None = admitting("a text, without messages", about="The text to tokenise")
    messages: list[Message] | None = admitting(
        "a list of messages, without prompt",
        about="The conversation to tokenise",
        min_length=1,
        max_length=MAX_MESSAGES,
    )
    tools: list[Tool] | None = admitting(
        "a list of tools, with messages",
        about="What the chat template is told of, as in a chat completion",
        max_length=MAX_TOOLS,
    )
    add_special_tokens: bool | None = admitting(
        "true or false",
        about="Whether the tokenizer adds what it puts around a text, such as a token of its beginning; true for a "
        "prompt and false for messages where it is left out",
    )
    add_generation_prompt: bool | None = admitting(
        "true or false, with messages", about="Whether the conversation ends where an answer begins; true by itself"
    )


class DetokenizeRequest(StrictModel):
    """`POST /detokenize`."""

    model: str = admitting(MODEL_BOUNDS, default=..., min_length=1, max_length=200)
    tokens: list[Annotated[int, Field(ge=0, le=MAX_INT)]] = admitting(
        "a list of ids of the model's tokens", default=..., fail_fast=True
    )


class EmbeddingsRequest(StrictModel):
    """`POST /v1/embeddings`, with OpenAI's fields."""

    model: str = admitting(MODEL_BOUNDS, default=..., min_length=1, max_length=200)
    input: (
        PromptText
        | TokenIds
        | Annotated[list[PromptText], Field(min_length=1, max_length=MAX_INPUTS)]
        | Annotated[list[TokenIds], Field(min_length=1, max_length=MAX_INPUTS)]
    ) = admitting(
        f"a text or a list of token ids, not empty, or a list of up to {MAX_INPUTS} of either",
        about="What to embed; each input counts as a request, and waits for its own place",
        default=...,
    )
    dimensions: int | None = admitting(
        "the length of the model's own vectors", about="Vectors are not shortened", ge=1, le=MAX_INT
    )
    encoding_format: Literal["float", "base64"] | None = admitting(
        "'float' or 'base64'", about="Numbers (as where it is left out), or their fp32 in little-endian order"
    )
    user: str | None = admitting("a text of up to 512 characters", about="Without effect", max_length=512)
    pool: str | None = admitting(
        "the name of a pool that serves the model and that the tenant may use", min_length=1, max_length=64
    )
