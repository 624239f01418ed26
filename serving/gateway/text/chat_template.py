"""A model's own chat template: messages to the prompt that the model was trained on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from serving.contracts.errors import InvalidValue
from serving.gateway.text.folder import ModelTextProblem, read_optional_object, read_text
from serving.gateway.text.tool_calls import ToolCallFormat

_TEMPLATE_FILE = "chat_template.jinja"
_CONFIG_FILE = "tokenizer_config.json"
_TOKEN_FIELDS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class MessagesRefused(InvalidValue):
    """The template cannot make a prompt of these messages; the message carries the template's own reason."""

    def __init__(self, reason: str) -> None:
        super().__init__("messages", None, "messages that the model's chat template admits")
        self.message = f"the model's chat template refuses these messages: {reason}"
        self.args = (self.message,)


class NoChatTemplate(InvalidValue):
    """The model has no chat template, so that it takes completions only."""

    def __init__(self, model: str) -> None:
        super().__init__("model", model, "a model with a chat template")
        self.message = f"model {model} has no chat template; use /v1/completions, or a model made for chat"
        self.args = (self.message,)


@dataclasses.dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A compiled chat template, or the knowledge that the model has none. Immutable; build one with `load`.

    The template runs in a sandbox that neither reaches Python's internals nor changes what it is given.
    """

    model: str
    tool_call_format: ToolCallFormat | None
    """How the model is told to write calls of tools; None where its template knows no tools, or another way."""
    _template: jinja2.Template | None
    _template_with_tools: jinja2.Template | None
    _special_tokens: Mapping[str, str]

    @classmethod
    def load(cls, folder: Path, *, now: Callable[[], datetime] | None = None) -> ChatTemplate:
        """Read `chat_template.jinja`, or `chat_template` of `tokenizer_config.json` (of several, the one named
        `default`, and `tool_use` for requests with tools). `now` gives the local time to templates that write a date.

        Raises `ModelTextProblem`, naming folder and file, where a template is there and cannot be compiled.
        """
        config = read_optional_object(folder, _CONFIG_FILE)
        file, source, source_with_tools = _find_sources(folder, config)
        environment = _build_environment(now or _local_time)
        return cls(
            model=folder.name,
            tool_call_format=_find_tool_call_format(environment, source_with_tools),
            _template=_compile(environment, source, folder=folder, file=file),
            _template_with_tools=_compile(environment, source_with_tools, folder=folder, file=file),
            _special_tokens=_special_tokens(config),
        )

    @property
    def exists(self) -> bool:
        """Whether the model has a chat template."""
        return self._template is not None

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt's text, to be encoded without further special tokens: the template writes its own.

        `tools`, in OpenAI's form, are for templates with a `tool_call_format`; others leave them out.

        A `content` of null, as beside `tool_calls`, is shown to the template as an empty string, since templates
        join it with others; a tool call's arguments are shown as the object that their JSON text holds. Text of a
        special token within a message becomes that token when the prompt is encoded, as in Hugging Face Transformers:
        whoever forwards what strangers write takes such text out first.

        Raises `NoChatTemplate`, or `MessagesRefused` with the template's reason.
        """
        if self._template is None:
            raise NoChatTemplate(self.model)
        shown = [_shown_to_template(message) for message in messages]
        template = self._template_with_tools if tools and self._template_with_tools is not None else self._template
        try:
            return template.render(
                **self._special_tokens,
                messages=shown,
                tools=tools or None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
            )
        except Exception as error:  # Whatever a template trips over, it is these messages that made it.
            raise MessagesRefused(str(error) or type(error).__name__) from error


def _find_sources(folder: Path, config: Mapping[str, Any]) -> tuple[str, str | None, str | None]:
    """The file, its template, and its template for requests with tools, which often is the same."""
    source = read_text(folder, _TEMPLATE_FILE)
    if source is not None:
        return _TEMPLATE_FILE, source, source
    value = config.get("chat_template")
    if value is None or isinstance(value, str):
        return _CONFIG_FILE, value, value
    try:
        named = {entry["name"]: str(entry["template"]) for entry in value}
    except (TypeError, KeyError):
        raise ModelTextProblem(folder, _CONFIG_FILE, "has a chat_template that is neither text nor a list") from None
    if "default" not in named and len(named) != 1:
        raise ModelTextProblem(folder, _CONFIG_FILE, f"has chat templates {', '.join(named)} and none named default")
    default = named["default"] if "default" in named else next(iter(named.values()))
    return _CONFIG_FILE, default, named.get("tool_use", default)


def _build_environment(now: Callable[[], datetime]) -> ImmutableSandboxedEnvironment:
    # The settings and functions that templates are written for (Transformers, `chat_template_utils`). What they make
    # is a prompt and no HTML.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, autoescape=False, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format_: now().strftime(format_)
    return environment


def _compile(environment: jinja2.Environment, source: str | None, *, folder: Path, file: str) -> jinja2.Template | None:
    if source is None:
        return None
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise ModelTextProblem(folder, file, f"holds a chat template that cannot be compiled ({error})") from error


def _find_tool_call_format(environment: jinja2.Environment, source: str | None) -> ToolCallFormat | None:
    """Told by what a template that uses `tools` itself says of calls."""
    try:
        uses_tools = source is not None and "tools" in jinja2.meta.find_undeclared_variables(environment.parse(source))
    except jinja2.TemplateError:
        return None  # which `_compile` says
    if source is None or not uses_tools:
        return None
    if "<tool_call>" in source:
        return "hermes"
    if "[TOOL_CALLS]" in source:
        return "mistral"
    return "llama" if '"name":' in source and '"parameters":' in source else None


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """The named special tokens, each written as text or as an object with its `content`."""
    found = {field: config.get(field) for field in _TOKEN_FIELDS}
    contents = {field: value.get("content") if isinstance(value, dict) else value for field, value in found.items()}
    return {field: content for field, content in contents.items() if isinstance(content, str)}


def _shown_to_template(message: Mapping[str, Any]) -> dict[str, Any]:
    shown = dict(message)
    if shown.get("content") is None:
        shown["content"] = ""
    if isinstance(calls := shown.get("tool_calls"), (list, tuple)):
        shown["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
    return shown


def _with_parsed_arguments(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"])
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}} if isinstance(arguments, dict) else call


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant wrote, for training; here its content stands for itself."""

    tags = {"generation"}  # noqa: RUF012 (the name and type that Jinja asks for)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001, FBT002 (templates may pass these by position)
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001, FBT002
) -> str:
    """JSON without the escaping of HTML that Jinja's own filter does."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _local_time() -> datetime:
    return datetime.now().astimezone()
