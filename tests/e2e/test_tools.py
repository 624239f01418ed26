"""Tools on a real model: its own template knows none, so that it is given one that does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.conftest import MakeStack

pytestmark = [pytest.mark.stack, pytest.mark.model]

TEMPLATE = """
{%- if tools %}<|im_start|>system
You may call functions within <tool_call></tool_call>: {{ tools | tojson }}<|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Prague"]}, "days": {"type": "integer", "maximum": 9}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}


def give_template(model: Path, home: Path) -> Path:
    folder = home / "with-tools"
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "chat_template.jinja").unlink()
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


def test_forced_calls_follow_their_schema_and_free_answers_stay_text(
    own_stack: MakeStack, default_model: Path, tmp_path: Path
) -> None:
    folder = give_template(default_model, tmp_path)
    stack = own_stack(FOOTPLATE_MODEL=str(folder)).start()
    messages: Any = [{"role": "user", "content": "What is the weather in Paris for the next three days?"}]
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.first_run["api_key"], max_retries=0) as client:

        def ask(**fields: Any) -> Any:
            return client.chat.completions.create(
                model=folder.name, messages=messages, max_tokens=100, temperature=0, **fields
            ).choices[0]

        named = ask(tools=[WEATHER, CLOCK], tool_choice={"type": "function", "function": {"name": "get_weather"}})
        (call,) = named.message.tool_calls
        assert call.function.name == "get_weather"
        assert set(arguments := json.loads(call.function.arguments)) == {"city", "days"}
        assert arguments["city"] in ("Paris", "Prague")
        assert arguments["days"] <= 9

        required = ask(tools=[WEATHER, CLOCK], tool_choice="required")
        (call,) = required.message.tool_calls
        assert call.function.name in ("get_weather", "get_time")
        assert isinstance(json.loads(call.function.arguments), dict)
        assert required.finish_reason == "tool_calls"

        with client.chat.completions.stream(
            model=folder.name,
            messages=messages,
            tools=[WEATHER, CLOCK],
            tool_choice="required",
            temperature=0,
        ) as stream:
            streamed = stream.get_final_completion().choices[0]
        assert [each.function.arguments for each in streamed.message.tool_calls or ()] == [call.function.arguments]

        told = ask(tools=[{**WEATHER, "function": {**WEATHER["function"], "strict": None}}], tool_choice="none")
        assert told.message.content
        assert told.message.tool_calls is None
    stack.wait_until_idle()
    assert stack.stop() == 0
