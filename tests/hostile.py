"""A generator of hostile bodies: requests that nearly make sense, and many that make none. A function of its seed."""

from __future__ import annotations

import copy
import dataclasses
import json
import random
from collections.abc import Callable
from typing import Any

QUESTION: list[Any] = [{"role": "user", "content": "Hi"}]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": SCHEMA}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}}
SAMPLING: dict[str, Any] = {
    "temperature": 0.7,
    "top_p": 0.9,
    "top_k": 5,
    "min_p": 0.1,
    "seed": 7,
    "n": 2,
    "max_tokens": 4,
    "min_tokens": 1,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.5,
    "repetition_penalty": 1.1,
    "logit_bias": {"5": 1.5},
    "stop": ["x", "yz"],
    "stop_token_ids": [3],
    "ignore_eos": False,
    "priority": 1,
    "cache_salt": "s",
    "timeout": 9,
    "user": "me",
    "metadata": {"a": "b"},
    "timings": True,
    "stream": True,
    "stream_options": {"include_usage": True},
}
CONVERSATION: list[Any] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "ahoj"}], "name": "me"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "4", "tool_call_id": "call_1"},
]
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "Hi", "max_tokens": 4}),
    ("/v1/completions", {"prompt": ["Hi", "Ho"], "echo": True, "logprobs": 3, **SAMPLING}),
    ("/v1/completions", {"prompt": [1, 2, 3], "best_of": 3, "prompt_logprobs": 1, "max_tokens": 3}),
    ("/v1/completions", {"prompt": "Hi", "regex": "[a-z]{1,3}", "max_tokens": 3}),
    ("/v1/chat/completions", {"messages": QUESTION, "max_completion_tokens": 4}),
    ("/v1/chat/completions", {"messages": CONVERSATION, "logprobs": True, "top_logprobs": 2, **SAMPLING}),
    ("/v1/chat/completions", {"messages": QUESTION, "tools": [TOOL], "tool_choice": "auto", "max_tokens": 4}),
    (
        "/v1/chat/completions",
        {
            "messages": QUESTION,
            "max_tokens": 4,
            "response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
        },
    ),
    ("/tokenize", {"prompt": "Hi", "add_special_tokens": True}),
    ("/tokenize", {"messages": CONVERSATION, "add_generation_prompt": False}),
    ("/detokenize", {"tokens": [1, 2, 3]}),
    ("/v1/embeddings", {"input": ["a", "b"], "encoding_format": "base64", "user": "me"}),
    ("/v1/embeddings", {"input": [[1, 2], [3]], "dimensions": None}),
]


@dataclasses.dataclass(frozen=True)
class Raw:
    """JSON, or what only looks like it, written as it is."""

    text: str


@dataclasses.dataclass(frozen=True)
class Attack:
    """One request."""

    path: str
    content: bytes
    content_type: str


VALUES: list[Any] = [
    *(None, True, False, 0, -1, 1, 2, 0.5, -0.0, 1e308, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**400),
    *(
        Raw("NaN"),
        Raw("-Infinity"),
        Raw("1e400"),
        Raw("-1e-400"),
        Raw("01"),
        Raw("1."),
        Raw(".5"),
        Raw("+1"),
        Raw("0x10"),
    ),
    *("", " ", "nan", "1", "true", "\0", "a\0b", "\u202e", "é" * 70, "👨‍👩‍👧", "\ufeff", "\uffff", "x" * 100_000),
    *(Raw('"\\ud800"'), Raw('"\\udfff\\ud800"'), Raw('"\\x41"'), Raw("'a'"), Raw("undefined"), Raw("")),
    *([], [[]], [None], [[1], "a"], {}, {"": {}}, {"$ref": "#"}, {"__class__": 1}, {"type": "x"}, [[[[[[1]]]]]]),
    *([1] * 3000, {str(index): index for index in range(2000)}, ["a"] * 17, [{}] * 200),
    *(Raw("[" * 500 + "]" * 500), Raw('{"a":' * 5000 + "1" + "}" * 5000), Raw("[" * 100_000)),
    *("{{ 7 * 7 }}", "{% raw %}", "<|im_end|>", "../../etc/passwd", "' OR 1=1 --", "%s%n", "(a+)+$", "(" * 3000, "[^"),
    *({"type": "image_url", "image_url": {"url": "http://127.0.0.1:9/x"}}, {"role": "user", "content": "x"}),
]
NAMES = ["", "constructor", "__proto__", "model", "prompt", "messages", "n", "Temperature", "stop\0", "é", "x" * 5000]
CONTENT_TYPES = ["text/plain", "application/json; charset=utf-16", "multipart/form-data; boundary=x", "\xe9", ""]


def make_attacks(seed: int, count: int, *, model: str) -> list[Attack]:
    """`count` requests: valid ones with one to three things wrong, in what they say or how it is written."""
    rng = random.Random(seed)
    return [_make_attack(rng, model) for _ in range(count)]


def _make_attack(rng: random.Random, model: str) -> Attack:
    path, body = rng.choice(BODIES)
    value: Any = {"model": model, **copy.deepcopy(body)}
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
        value = rng.choice(MUTATIONS)(rng, value)
    content = _write(rng, value).encode("utf-8", "surrogatepass")
    if rng.random() < 0.15:
        content = rng.choice(DISTORTIONS)(rng, content)
    return Attack(path, content, rng.choice(CONTENT_TYPES) if rng.random() < 0.02 else "application/json")


# --- in what is said ---


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container in `value` with each of its keys or indices."""
    keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
    return [place for key in keys for place in ((value, key), *_places(value[key]))]


def _replace_one(rng: random.Random, value: Any) -> Any:
    places = _places(value)
    if places:
        container, key = rng.choice(places)
        container[key] = copy.deepcopy(rng.choice(VALUES))
    return value


def _replace_top(rng: random.Random, value: Any) -> Any:
    if isinstance(value, dict) and value:
        value[rng.choice(list(value))] = copy.deepcopy(rng.choice(VALUES))
    return value


def _replace_alike(rng: random.Random, value: Any) -> Any:
    """By a value of its own kind: what gets past the first checks."""
    places = _places(value)
    if places:
        container, key = rng.choice(places)
        alike = [other for other in VALUES if type(other) is type(container[key])]
        container[key] = copy.deepcopy(rng.choice(alike or [None]))
    return value


def _remove_one(rng: random.Random, value: Any) -> Any:
    places = _places(value)
    if places:
        container, key = rng.choice(places)
        del container[key]
    return value


def _add_one(rng: random.Random, value: Any) -> Any:
    if isinstance(value, dict):
        name = rng.choice([*NAMES, *SAMPLING, "tools", "response_format", "grammar", "regex", "logprobs", "echo"])
        value[name] = copy.deepcopy(rng.choice(VALUES))
    return value


def _wrap_one(rng: random.Random, value: Any) -> Any:
    places = _places(value)
    if places:
        container, key = rng.choice(places)
        container[key] = [container[key]] if rng.random() < 0.5 else {"value": container[key]}
    return value


def _be_another(rng: random.Random, value: Any) -> Any:
    return copy.deepcopy(rng.choice(VALUES))


Mutation = Callable[[random.Random, Any], Any]
MUTATIONS: list[Mutation] = [
    *[_replace_alike] * 8,
    *[_replace_one] * 6,
    *[_replace_top] * 4,
    *[_remove_one] * 4,
    *[_add_one] * 4,
    _wrap_one,
    _be_another,
]


# --- in how it is written ---


def _write(rng: random.Random, value: Any) -> str:
    """JSON, with the odd key twice."""
    if isinstance(value, Raw):
        return value.text
    if isinstance(value, list):
        return "[" + ",".join([_write(rng, item) for item in value]) + "]"
    if isinstance(value, dict):
        pairs = [f"{json.dumps(name)}:{_write(rng, item)}" for name, item in value.items()]
        if pairs and rng.random() < 0.03:
            pairs.append(rng.choice(pairs))
        return "{" + ",".join(pairs) + "}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) > 2**64:
        return "1" + "0" * 400
    return json.dumps(value, ensure_ascii=rng.random() < 0.5)


def _truncate(rng: random.Random, content: bytes) -> bytes:
    return content[: rng.randrange(len(content) + 1)]


def _flip(rng: random.Random, content: bytes) -> bytes:
    changed = bytearray(content or b"x")
    changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def _insert(rng: random.Random, content: bytes) -> bytes:
    place = rng.randrange(len(content) + 1)
    piece = rng.choice(
        [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9f", b"\0", b"\r\n", b"//", b",", b'"', b"\xef\xbb\xbf"]
    )
    return content[:place] + piece + content[place:]


def _surround(rng: random.Random, content: bytes) -> bytes:
    return rng.choice([b"\xef\xbb\xbf" + content, content + b"garbage", content * 2, b" " * 1000 + content, b""])


def _recode(rng: random.Random, content: bytes) -> bytes:
    return content.decode("utf-8", "replace").encode(rng.choice(["utf-16", "utf-32", "cp037"]), "replace")


DISTORTIONS: list[Callable[[random.Random, bytes], bytes]] = [_truncate, _flip, _insert, _surround, _recode]
