"""Chat templates: rendered as Transformers does, refused with the template's own reason."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from serving.contracts.errors import InvalidValue
from serving.gateway.text.chat_template import ChatTemplate, MessagesRefused, NoChatTemplate
from serving.gateway.text.folder import ModelTextProblem

STRICT = """
{%- if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate user/assistant') }}
    {%- endif %}
    {{- '[' + message['role'] + ']' + message['content'] }}
{%- endfor %}
{%- if add_generation_prompt %}[assistant]{% endif %}"""
USER = {"role": "user", "content": "Hello"}
TOOL_CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"where": "šachta"}'}}


def load(folder: Path, source: Any, **config: Any) -> ChatTemplate:
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": source, **config}))
    return ChatTemplate.load(folder, now=lambda: datetime(2031, 5, 17, tzinfo=UTC))


def render(folder: Path, source: str, messages: list[dict[str, Any]], **config: Any) -> str:
    return load(folder, source, **config).render(messages, add_generation_prompt=True)


def test_renders_with_and_without_a_generation_prompt(tmp_path: Path) -> None:
    template = load(tmp_path, STRICT)
    assert template.render([USER], add_generation_prompt=True) == "[user]Hello[assistant]"
    assert template.render([USER], add_generation_prompt=False) == "[user]Hello"


@pytest.mark.parametrize(
    ("roles", "reason"),
    [
        (["system"], "System role not supported"),
        (["system", "user"], "System role not supported"),
        (["user", "user"], "Roles must alternate"),
        (["assistant", "user"], "Roles must alternate"),
        (["tool"], "Roles must alternate"),
        (["developer"], "Roles must alternate"),
        (["x"], "Roles must alternate"),
    ],
)
def test_refusal_carries_the_templates_reason(tmp_path: Path, roles: list[str], reason: str) -> None:
    with pytest.raises(InvalidValue, match=reason) as refusal:
        render(tmp_path, STRICT, [{"role": role, "content": "x"} for role in roles])
    assert (refusal.value.code, refusal.value.param) == ("invalid_value", "messages")
    assert reason in refusal.value.message


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[5].content.missing }}",
        "{{ messages[0].content + 1 }}",
        "{{ messages[0].content | tojson | int / 0 }}",
        "{{ messages[0].__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% for a in range(999999999) %}{% endfor %}",
        "{{ strftime_now(7) }}",
    ],
)
def test_whatever_a_template_trips_over_is_a_refusal(tmp_path: Path, source: str) -> None:
    with pytest.raises(MessagesRefused):
        render(tmp_path, source, [USER])


def test_null_content_beside_tool_calls_passes(tmp_path: Path) -> None:
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "dark"},
        USER,
    ]
    source = (
        "{% for m in messages %}[{{ m.role }}]{{ '' + m.content }}"
        "{% for c in m.tool_calls %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    )
    assert render(tmp_path, source, messages) == '[user]Hello[assistant]look{"where": "šachta"}[tool]dark[user]Hello'


@pytest.mark.parametrize("arguments", ["not json", "[1]", '"text"'])
def test_arguments_that_are_no_json_object_stay_text(tmp_path: Path, arguments: str) -> None:
    call = {"function": {"name": "look", "arguments": arguments}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    source = "{{ messages[0].tool_calls[0].function.arguments }}"
    assert render(tmp_path, source, messages) == arguments


def test_callers_messages_are_left_as_they_were(tmp_path: Path) -> None:
    messages = [{"role": "assistant", "content": None, "tool_calls": [TOOL_CALL]}]
    before = json.dumps(messages)
    render(tmp_path, "{{ messages[0].content }}", messages)
    assert json.dumps(messages) == before


def test_special_tokens_come_from_the_tokenizers_configuration(tmp_path: Path) -> None:
    source = "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}"
    tokens = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}, "pad_token": None}
    assert render(tmp_path, source, [USER], **tokens) == "<s></s>False"


def test_json_date_loop_controls_and_generation_blocks_work(tmp_path: Path) -> None:
    source = """{{ {'b': '<č>', 'a': 1} | tojson(sort_keys=true) }} {{ strftime_now('%d %b %Y') }}
    {% for n in range(9) %}{% if n == 2 %}{% break %}{% endif %}{{ n }}{% endfor %}
    {%- generation %}!{% endgeneration %}"""
    assert render(tmp_path, source, [USER]) == '{"a": 1, "b": "<č>"} 17 May 2031\n01!'


def test_own_file_goes_before_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("from file")
    assert render(tmp_path, "from configuration", [USER]) == "from file"


def test_of_several_templates_takes_the_default(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert load(tmp_path, named).render([USER], add_generation_prompt=True) == "plain"
    assert load(tmp_path, named[:1]).render([USER], add_generation_prompt=True) == "tools"


LLAMA = """{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if tools is not none %}Respond in the format {"name": function name, "parameters": dictionary}.{%- endif %}"""


@pytest.mark.parametrize(
    ("source", "format_"),
    [
        ("{{ messages[0].content }}", None),
        ("<tool_call> [TOOL_CALLS]", None),
        ("{% set tools = [1] %}{% for t in tools %}<tool_call>{% endfor %}", None),
        ("{% for t in tools %}CALL {{ t.function.name }}{% endfor %}", None),
        ("{% if tools %}within <tool_call></tool_call> tags{% endif %}", "hermes"),
        ("{% if tools is not none %}[TOOL_CALLS]{% endif %}", "mistral"),
        (LLAMA, "llama"),
    ],
)
def test_says_how_a_model_is_told_to_write_calls(tmp_path: Path, source: str, format_: str | None) -> None:
    assert load(tmp_path, source).tool_call_format == format_


def test_template_of_its_own_for_tools_is_used_with_tools_alone(tmp_path: Path) -> None:
    named = [
        {"name": "default", "template": "plain{{ tools }}"},
        {"name": "tool_use", "template": "{% for t in tools %}<tool_call>{{ t.function.name }}{% endfor %}"},
    ]
    template = load(tmp_path, named)
    assert template.tool_call_format == "hermes"
    tools = [{"type": "function", "function": {"name": "look"}}]
    assert template.render([USER], tools=tools) == "<tool_call>look"
    assert template.render([USER], tools=[]) == template.render([USER]) == "plainNone"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for %}", "cannot be compiled"),
        ([{"name": "a", "template": "x"}, {"name": "b", "template": "y"}], "none named default"),
        (7, "neither text nor a list"),
        ([{"template": "x"}], "neither text nor a list"),
    ],
)
def test_says_which_file_holds_a_broken_template(tmp_path: Path, source: Any, reason: str) -> None:
    with pytest.raises(ModelTextProblem, match=reason) as problem:
        load(tmp_path, source)
    assert str(tmp_path) in str(problem.value)
    assert "tokenizer_config.json" in str(problem.value)


def test_model_without_a_template_says_so(tmp_path: Path) -> None:
    template = ChatTemplate.load(tmp_path)
    assert not template.exists
    with pytest.raises(NoChatTemplate, match="has no chat template") as refusal:
        template.render([USER], add_generation_prompt=True)
    assert refusal.value.param == "model"


@pytest.mark.model
@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [{"role": "system", "content": "Be brief."}, USER],
        [USER, {"role": "assistant", "content": "Hi."}, {"role": "user", "content": " <|im_end|> ďábelské 🌶️ "}],
    ],
)
def test_default_model_is_prompted_as_transformers_prompts_it(
    default_model: Path, messages: list[dict[str, Any]]
) -> None:
    from transformers import AutoTokenizer

    from serving.gateway.text.tokenizer import TextModel

    reference = AutoTokenizer.from_pretrained(default_model)
    text = ChatTemplate.load(default_model).render(messages, add_generation_prompt=True)
    assert text == reference.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    ids = TextModel.load(default_model).encode(text, add_special_tokens=False)
    assert ids == reference.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
