"""A body that is wrong all over is refused for its first faults: to list them all would hold up every stream."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from serving.api.schemas import ChatCompletionRequest, CompletionRequest
from serving.api.text_schemas import DetokenizeRequest, EmbeddingsRequest

_MANY = 10_000


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        *[
            (EmbeddingsRequest, {"input": value})
            for value in (["a"] * _MANY, [[1]] * _MANY, [1.5] * _MANY, [-1] * _MANY)
        ],
        *[(CompletionRequest, {"prompt": value}) for value in (["a"] * _MANY, [[1]] * _MANY, [[-1] * _MANY])],
        (DetokenizeRequest, {"tokens": ["a"] * _MANY}),
        (ChatCompletionRequest, {"messages": [5] * _MANY}),
        (ChatCompletionRequest, {"messages": [{"role": "user", "content": [5] * _MANY}]}),
        (ChatCompletionRequest, {"messages": [{"role": "assistant", "tool_calls": [5] * _MANY}]}),
        (CompletionRequest, {"prompt": "a", "logit_bias": {str(number): "much" for number in range(_MANY)}}),
        (CompletionRequest, {"prompt": "a", **{f"unknown_{number}": 1 for number in range(_MANY)}}),
        (ChatCompletionRequest, {"messages": [{str(number): 1 for number in range(_MANY)}]}),
    ],
)
def test_few_of_many_faults_are_listed(kind: type[BaseModel], fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate({"model": "tiny", **fields})
    assert caught.value.error_count() < 300
