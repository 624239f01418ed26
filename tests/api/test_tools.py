"""Tools: told to templates that know them, read back from what the model writes, whole and streamed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from serving.gateway.generation import ChoiceDelta, Generation
from serving.gateway.logprobs import TokenEntry
from serving.gateway.text.chat_template import ChatTemplate
from serving.gateway.text.token_spelling import Spelling
from tests.api.conftest import MODEL, ScriptedGateway, ScriptedServices
from tests.api.envelope import error_of

TEMPLATES = {
    "hermes": "{% for t in tools or [] %}{{ t | tojson }}{% endfor %}{% if tools %}<tool_call>{% endif %}"
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}"
    "{% endfor %}{% endfor %}",
    "mistral": "{% if tools %}[TOOL_CALLS]{{ tools | length }}{% endif %}{{ messages[0].content }}",
    "llama": '{% if tools %}{"name": function name, "parameters": arguments}{% endif %}{{ messages[0].content }}',
}
QUESTION: Any = [{"role": "user", "content": "Weather in Ďáblice?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "get-time"}}
ARGUMENTS = '{"place": "Ďáblice", "days": [1, {"x": "}"}]}'
WRITTEN = {
    "hermes": 'Let me see.\n<tool_call>\n{"name": "get_weather", "arguments": ' + ARGUMENTS + "}\n</tool_call>",
    "mistral": '[TOOL_CALLS][{"name": "get_weather", "arguments": ' + ARGUMENTS + "}]",
    "llama": '{"name": "get_weather", "parameters": ' + ARGUMENTS + "}",
}


@pytest.fixture
def use_template(services: ScriptedServices, tmp_path: Path) -> Any:
    """Gives the model another chat template."""

    def use(source: str) -> None:
        folder = tmp_path / MODEL
        folder.mkdir(exist_ok=True)
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": source}))
        services.chat_templates[MODEL] = ChatTemplate.load(folder)

    return use


def say(gateway: ScriptedGateway, text: str, *, size: int = 3, reason: Any = "stop") -> None:
    """Let it say `text` in each choice, in pieces of that many characters."""

    def script(generation: Generation) -> list[Any]:
        pieces = [text[start : start + size] for start in range(0, len(text), size)]
        told = [ChoiceDelta(choice, piece, 1) for choice in range(len(generation.params)) for piece in pieces]
        return told + [ChoiceDelta(choice, "", 0, reason) for choice in range(len(generation.params))]

    gateway.script = script


@pytest.mark.parametrize("kind", TEMPLATES)
@pytest.mark.parametrize("size", [1, 4, 1000])
async def test_calls_come_as_the_official_client_expects_them_whole_and_streamed_alike(
    sdk: openai.AsyncOpenAI, gateway: ScriptedGateway, use_template: Any, kind: str, size: int
) -> None:
    use_template(TEMPLATES[kind])
    say(gateway, WRITTEN[kind], size=size)
    answer = await sdk.chat.completions.create(model=MODEL, messages=QUESTION, tools=[WEATHER, CLOCK])
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == ("Let me see." if kind == "hermes" else None)
    (call,) = choice.message.tool_calls or ()
    assert call.type == "function"
    assert (call.function.name, call.function.arguments) == ("get_weather", ARGUMENTS)
    assert len(call.id) == 9 if kind == "mistral" else call.id.startswith("call_")

    async with sdk.chat.completions.stream(model=MODEL, messages=QUESTION, tools=[WEATHER, CLOCK]) as stream:
        streamed = await stream.get_final_completion()
    (found,) = streamed.choices[0].message.tool_calls or ()
    assert (found.function.name, found.function.arguments) == ("get_weather", ARGUMENTS)
    assert streamed.choices[0].finish_reason == "tool_calls"
    assert (streamed.choices[0].message.content or None) == choice.message.content


async def test_first_part_of_a_call_bears_its_id_and_name_and_the_others_its_arguments(
    sdk: openai.AsyncOpenAI, gateway: ScriptedGateway, use_template: Any
) -> None:
    use_template(TEMPLATES["hermes"])
    say(gateway, WRITTEN["hermes"], size=1)
    stream = await sdk.chat.completions.create(model=MODEL, messages=QUESTION, tools=[WEATHER], stream=True)
    deltas = [choice.delta async for chunk in stream for choice in chunk.choices]
    text = "".join(delta.content or "" for delta in deltas)
    assert text == "Let me see."
    first, *others = [part for delta in deltas for part in delta.tool_calls or ()]
    assert (first.index, first.type, first.function and first.function.name) == (0, "function", "get_weather")
    assert first.id
    assert len(others) > 10
    assert all(part.id is None and part.function and part.function.name is None for part in others)
    assert all(part.index == 0 for part in others)


async def test_several_choices_call_for_themselves_and_have_ids_of_their_own(
    client: httpx.AsyncClient, gateway: ScriptedGateway, use_template: Any
) -> None:
    use_template(TEMPLATES["hermes"])
    say(gateway, WRITTEN["hermes"] * 2)
    body = {"model": MODEL, "messages": QUESTION, "tools": [WEATHER], "n": 2}
    choices = (await client.post("/v1/chat/completions", json=body)).json()["choices"]
    ids = [call["id"] for choice in choices for call in choice["message"]["tool_calls"]]
    assert len(ids) == len(set(ids)) == 4
    body["parallel_tool_calls"] = False
    choices = (await client.post("/v1/chat/completions", json=body)).json()["choices"]
    assert [len(choice["message"]["tool_calls"]) for choice in choices] == [1, 1]


@pytest.mark.parametrize("kind", TEMPLATES)
async def test_what_only_looks_like_a_call_is_text(
    client: httpx.AsyncClient, gateway: ScriptedGateway, use_template: Any, kind: str
) -> None:
    use_template(TEMPLATES[kind])
    text = WRITTEN[kind].replace("get_weather", "get_rich")
    say(gateway, text)
    body = {"model": MODEL, "messages": QUESTION, "tools": [WEATHER]}
    (choice,) = (await client.post("/v1/chat/completions", json=body)).json()["choices"]
    assert choice["message"] == {"role": "assistant", "content": text, "refusal": None}
    assert choice["finish_reason"] == "stop"


async def test_call_cut_off_by_the_length_is_told_as_far_as_it_goes(
    client: httpx.AsyncClient, gateway: ScriptedGateway, use_template: Any
) -> None:
    use_template(TEMPLATES["hermes"])
    say(gateway, WRITTEN["hermes"][:80], reason="length")
    body = {"model": MODEL, "messages": QUESTION, "tools": [WEATHER]}
    (choice,) = (await client.post("/v1/chat/completions", json=body)).json()["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert choice["finish_reason"] == "length"
    assert ARGUMENTS.startswith(call["function"]["arguments"])


async def test_log_probabilities_of_a_call_lose_no_token(
    client: httpx.AsyncClient, gateway: ScriptedGateway, use_template: Any
) -> None:
    use_template(TEMPLATES["llama"])
    entry = TokenEntry(1, Spelling("x", b"x"), -1.0, (), 0, 1)
    pieces = [ChoiceDelta(0, piece, 1, logprobs=(entry,)) for piece in WRITTEN["llama"]]
    gateway.script = lambda _: [*pieces, ChoiceDelta(0, "", 0, "stop", logprobs=())]
    body = {"model": MODEL, "messages": QUESTION, "tools": [WEATHER], "logprobs": True, "stream": True}
    answer = await client.post("/v1/chat/completions", json=body)
    chunks = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line.startswith("data: {")]
    told = [choice["logprobs"]["content"] for chunk in chunks for choice in chunk["choices"] if choice["logprobs"]]
    assert sum(len(entries) for entries in told) == len(pieces)


# --- what the model is told ---


async def test_template_is_told_of_tools_unless_none_may_be_called(
    client: httpx.AsyncClient, gateway: ScriptedGateway, use_template: Any
) -> None:
    use_template(TEMPLATES["hermes"])
    body = {"model": MODEL, "messages": QUESTION, "tools": [WEATHER]}
    say(gateway, WRITTEN["hermes"])
    (choice,) = (await client.post("/v1/chat/completions", json={**body, "tool_choice": "none"})).json()["choices"]
    assert choice["message"]["content"] == WRITTEN["hermes"]
    await client.post("/v1/chat/completions", json={**body, "tool_choice": "auto"})
    without, with_tools = [gateway.view.text_model.decode(each.prompt_ids) for each in gateway.generations]
    assert without == "<user>Weather in Ďáblice?"
    assert with_tools == json.dumps(WEATHER, ensure_ascii=False) + "<tool_call>" + without


async def test_conversation_about_a_call_reaches_the_template_whole(
    sdk: openai.AsyncOpenAI, gateway: ScriptedGateway, use_template: Any
) -> None:
    """C59, with an answer sent back as the official client holds it."""
    use_template(TEMPLATES["hermes"])
    say(gateway, WRITTEN["hermes"])
    answer = await sdk.chat.completions.create(model=MODEL, messages=QUESTION, tools=[WEATHER])
    message = answer.choices[0].message
    (call,) = message.tool_calls or ()
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
    conversation: Any = [*QUESTION, message, result, {"role": "user", "content": "So?"}]
    await sdk.chat.completions.create(model=MODEL, messages=conversation)
    text = gateway.view.text_model.decode(gateway.generations[1].prompt_ids)
    function = {"arguments": json.loads(ARGUMENTS), "name": "get_weather"}
    assert json.loads(text[text.index("{") : text.index("<tool>")]) == function
    assert text.endswith("<tool>rain<user>So?")


# --- what is refused ---


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": "x"}, "tools"),
        ({"tools": [1]}, "tools"),
        ({"tools": [{}]}, "tools[0].type"),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        *[
            ({"tools": [tool(name=name)]}, "tools[0].function.name")
            for name in ("", "a b", "x" * 65, "é", "f\n", 5, None)
        ],
        *[({"tools": [tool(parameters=value)]}, "tools[0].function.parameters") for value in ([], "x", 5)],
        ({"tools": [tool(description=5)]}, "tools[0].function.description"),
        ({"tools": [tool(strict=True)]}, "tools[0].function.strict"),
        ({"tools": [tool(extra=1)]}, "tools[0].function.extra"),
        ({"tools": [tool()] * 129}, "tools"),
        ({"tools": [tool(description="x" * 65_536)]}, "tools"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        *[({"tools": [tool()], "tool_choice": value}, "tool_choice") for value in ("x", 5, [], {"type": "x"})],
        ({"tools": [tool()], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
        ({"tools": [tool()], "parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"tools": [tool()], "response_format": {"type": "json_object"}}, "tools"),
        ({"tools": [tool()], "regex": "a"}, "tools"),
    ],
)
async def test_malformed_tools_are_refused_by_name(
    client: httpx.AsyncClient, gateway: ScriptedGateway, use_template: Any, fields: dict[str, Any], param: str
) -> None:
    use_template(TEMPLATES["hermes"])
    answer = await client.post("/v1/chat/completions", json={"model": MODEL, "messages": QUESTION, **fields})
    error = error_of(answer, status=400)
    assert (error["param"] or "").startswith(param)
    assert not gateway.generations


@pytest.mark.parametrize("source", ["{{ messages[0].content }}", "{% if tools %}CALL f(x){% endif %}"])
async def test_models_that_take_no_tools_are_named(
    client: httpx.AsyncClient, gateway: ScriptedGateway, use_template: Any, source: str
) -> None:
    use_template(source)
    for path, fields in (("/v1/chat/completions", {}), ("/v1/chat/completions", {"stream": True}), ("/tokenize", {})):
        answer = await client.post(path, json={"model": MODEL, "messages": QUESTION, "tools": [WEATHER], **fields})
        error = error_of(answer, status=400)
        assert error["param"] == "tools"
        assert MODEL in error["message"]
    assert not gateway.generations


async def test_nothing_but_neutral_words_of_tools_is_taken_for_completions(client: httpx.AsyncClient) -> None:
    answer = await client.post("/v1/completions", json={"model": MODEL, "prompt": "Hi", "tools": [WEATHER]})
    assert error_of(answer, status=400)["param"] == "tools"


# --- calls that must be made ---


@pytest.mark.parametrize(
    ("choice", "names", "reason"),
    [
        ("required", {"get_weather", "get-time"}, "tool_calls"),
        ({"type": "function", "function": {"name": "get_weather"}}, {"get_weather"}, "stop"),
    ],
)
async def test_call_that_must_be_made_is_forced_by_a_grammar(
    sdk: openai.AsyncOpenAI, gateway: ScriptedGateway, use_template: Any, choice: Any, names: set[str], reason: str
) -> None:
    use_template(TEMPLATES["hermes"])
    say(gateway, '{"name":"get_weather","parameters":{"place":"Ďáblice"}}')
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    answer = await sdk.chat.completions.create(
        model=MODEL, messages=QUESTION, tools=[strict, CLOCK], tool_choice=choice
    )
    (call,) = answer.choices[0].message.tool_calls or ()
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"place":"Ďáblice"}')
    assert answer.choices[0].finish_reason == reason
    assert answer.choices[0].message.content is None
    grammar = gateway.generations[0].params[0].grammar
    assert grammar is not None
    schema = json.loads(grammar.text)
    calls = schema.get("anyOf", [schema])
    assert {each["properties"]["name"]["const"] for each in calls} == names
    assert calls[0]["properties"]["parameters"] == WEATHER["function"]["parameters"]


async def test_forced_call_may_have_a_schema_that_points_into_itself(
    client: httpx.AsyncClient, gateway: ScriptedGateway, use_template: Any
) -> None:
    """As the official client writes it for nested models; without a type too, the parameters are an object."""
    use_template(TEMPLATES["hermes"])
    place = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
    parameters = {"properties": {"default": {"$ref": "#/$defs/Place"}}, "$defs": {"Place": place}}
    for tools in ([tool(parameters=parameters)], [CLOCK, tool(parameters=parameters)]):
        body = {"model": MODEL, "messages": QUESTION, "tools": tools, "tool_choice": "required"}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    assert all('"type":"object","properties":{"name":' in str(each.params[0].grammar) for each in gateway.generations)


async def test_strict_tools_may_stand_where_none_is_called(client: httpx.AsyncClient, use_template: Any) -> None:
    use_template(TEMPLATES["hermes"])
    body = {"model": MODEL, "messages": QUESTION, "tools": [tool(strict=True)], "tool_choice": "none"}
    assert (await client.post("/v1/chat/completions", json=body)).status_code == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
@pytest.mark.parametrize("arguments", ["[" * 50_000, '{"a":' * 50_000, "{", "5"])
async def test_arguments_of_an_earlier_call_that_are_no_object_are_shown_as_they_are(
    client: httpx.AsyncClient, path: str, arguments: str
) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [*QUESTION, {"role": "assistant", "tool_calls": [call]}]
    assert (await client.post(path, json={"model": MODEL, "messages": messages})).status_code == 200


async def test_schema_that_cannot_be_followed_is_refused_before_anything_waits(
    client: httpx.AsyncClient, gateway: ScriptedGateway, use_template: Any
) -> None:
    use_template(TEMPLATES["hermes"])
    deep: dict[str, Any] = {"type": "object"}
    for _ in range(40):
        deep = {"type": "object", "properties": {"a": deep}}
    for parameters in ({"type": "nonsense"}, {"type": "object", "properties": 5}, {"type": "array"}, deep):
        body = {
            "model": MODEL,
            "messages": QUESTION,
            "tools": [tool(parameters=parameters)],
            "tool_choice": "required",
        }
        error = error_of(await client.post("/v1/chat/completions", json=body), status=400)
        assert error["param"] == "tools"
    assert not gateway.generations
