"""Tools in bodies of requests."""

from __future__ import annotations

from typing import Any, Literal

from serving.api.strict import StrictModel, admitting

MAX_TOOLS = 128
_NAME_BOUNDS = "a text of 1 to 64 letters, digits, _ and -"
_NAME_PATTERN = "^[a-zA-Z0-9_-]{1,64}$"


class FunctionDefinition(StrictModel):
    """A function that the model may call."""

    name: str = admitting(_NAME_BOUNDS, default=..., pattern=_NAME_PATTERN)
    description: str | None = admitting("a text", about="What it does")
    parameters: dict[str, Any] | None = admitting("an object", about="A JSON schema of its arguments")
    strict: bool | None = admitting("true or false", about="Whether arguments are kept to their schema")


class Tool(StrictModel):
    """Something that the model may use."""

    type: Literal["function"] = admitting("'function', the only kind of tool supported", default=...)
    function: FunctionDefinition = admitting("an object with a name", default=...)


class NamedFunction(StrictModel):
    """A function, by its name."""

    name: str = admitting(_NAME_BOUNDS, default=..., pattern=_NAME_PATTERN)


class NamedToolChoice(StrictModel):
    """The tool that has to be used."""

    type: Literal["function"] = admitting("'function', the only kind of tool supported", default=...)
    function: NamedFunction = admitting("an object with a name", default=...)
