"""Bodies of requests about text that nothing is generated for, checked as strictly as all others."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from serving.api.schemas import MAX_MESSAGES, Message
from serving.api.strict import MAX_INT, StrictModel, admitting
from serving.api.tool_schemas import MAX_TOOLS, Tool

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
        "a list of ids of the model's tokens", default=...
    )


class EmbeddingsRequest(StrictModel):
    """`POST /v1/embeddings`, with OpenAI's fields; no model served here makes any."""

    model: str = admitting(MODEL_BOUNDS, default=..., min_length=1, max_length=200)
    input: Any = admitting("a text or a list", default=...)
    dimensions: int | None = admitting("an integer of at least 1", ge=1)
    encoding_format: str | None = admitting("'float' or 'base64'")
    user: str | None = admitting("a text of up to 512 characters", max_length=512)
