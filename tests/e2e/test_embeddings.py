"""Embeddings of the real model through a whole stack and the official client."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import numpy as np
import numpy.typing as npt
import openai
import pytest
import torch
from tokenizers import Tokenizer
from transformers import AutoModel

from tests.e2e.stack import Stack

pytestmark = [pytest.mark.stack, pytest.mark.model]

TEXTS = [
    "The locomotive left the station at noon.",
    "A train departed from the platform at twelve o'clock.",
    "Prime numbers have exactly two divisors.",
    "Příliš žluťoučký kůň úpěl ďábelské ódy. 東京",
    " ".join(f"Chapter {number}. It was a dark and stormy night." for number in range(60)),
]


def vectors_of(client: openai.OpenAI, model: str, texts: list[str]) -> npt.NDArray[np.float64]:
    answer = client.embeddings.create(model=model, input=texts)
    assert [each.index for each in answer.data] == list(range(len(texts)))
    return np.array([each.embedding for each in answer.data])


@pytest.fixture(scope="module")
def expected(default_model: Path) -> npt.NDArray[np.float64]:
    """What Transformers makes of the texts in fp32."""
    tokenizer = Tokenizer.from_file(str(default_model / "tokenizer.json"))
    model = AutoModel.from_pretrained(default_model, dtype=torch.float32).eval()
    vectors = []
    with torch.inference_mode():
        for text in TEXTS:
            mean = model(torch.tensor([tokenizer.encode(text).ids])).last_hidden_state[0].double().mean(dim=0)
            vectors.append((mean / mean.norm()).numpy())
    return np.array(vectors)


def test_embeddings_are_the_means_of_transformers_hidden_states(
    client: openai.OpenAI, model: str, expected: npt.NDArray[np.float64]
) -> None:
    found = vectors_of(client, model, TEXTS)
    assert found.shape == expected.shape
    assert np.linalg.norm(found, axis=1) == pytest.approx(1, abs=1e-5)
    assert (found * expected).sum(axis=1).min() > 0.999
    similar = found @ found.T
    assert similar[0, 1] > similar[0, 2]


def test_an_embedding_says_what_it_is_and_depends_on_no_company(client: openai.OpenAI, model: str) -> None:
    together = vectors_of(client, model, TEXTS)
    for text, vector in zip(TEXTS, together, strict=True):
        answer = client.embeddings.create(model=model, input=text, dimensions=len(vector), encoding_format="float")
        assert answer.data[0].embedding == vector.tolist()
        assert answer.model_extra == {"pooling": "mean"}
        assert answer.usage.prompt_tokens == answer.usage.total_tokens > 0
    with pytest.raises(openai.BadRequestError, match="dimensions"):
        client.embeddings.create(model=model, input="Hi", dimensions=64)


def test_embeddings_run_beside_texts_and_are_counted_as_prompts_alone(
    stack: Stack, client: openai.OpenAI, model: str
) -> None:
    operator = httpx.Client(base_url=stack.url, headers=stack.headers, timeout=60)
    tenant = operator.post("/ops/v1/tenants", json={"name": f"tenant {time.time_ns()}"}).json()
    key = operator.post(f"/ops/v1/tenants/{tenant['id']}/keys", json={"scopes": ["generate"]}).json()["key"]
    before = stack.wait_until_settled()
    inputs = [f"{TEXTS[0]} {number}" for number in range(64)]
    stream = client.completions.create(model=model, prompt="Once", max_tokens=40, stream=True, seed=1)
    with openai.OpenAI(base_url=f"{stack.url}/v1", api_key=key, max_retries=0) as own:
        answer = own.embeddings.create(model=model, input=inputs)
    assert len(answer.data) == 64
    assert any(chunk.choices[0].text for chunk in list(stream))
    stack.wait_until_idle()
    after = stack.wait_for(lambda s: s["outcomes"]["submitted"] == before["outcomes"].get("submitted", 0) + 65)
    (then,), (now,) = before["engines"], after["engines"]
    assert now["prompt_tokens_total"] - then["prompt_tokens_total"] > answer.usage.prompt_tokens
    assert 0 < now["generated_tokens_total"] - then["generated_tokens_total"] <= 40
    usage_path = f"/ops/v1/tenants/{tenant['id']}/usage"
    deadline = time.monotonic() + 30
    while not (days := operator.get(usage_path).json()["data"]) or days[0]["num_requests"] < 64:
        assert time.monotonic() < deadline, f"not all of it was written down: {days}"
        time.sleep(0.1)
    (day,) = days
    counted = day["num_requests"], day["prompt_tokens"], day["completion_tokens"]
    assert counted == (64, answer.usage.prompt_tokens, 0)
    operator.close()
