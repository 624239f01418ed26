"""The default model's logits in bf16 over contexts of many tiles of attention are the same bit for bit, whoever shares
the step, however it is cut, with one thread or several, and with PyTorch on processors without bf16."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving.contracts.ids import OwnerId, RequestId
from serving.contracts.messages import SequenceKey, Submit
from serving.contracts.sampling import SamplingParams
from serving.engine.models.weights import threads_differ
from tests.engine.driving import random_prompts
from tests.engine.playing import PLENTY, Subject, house_of
from tests.engine.various import VOCABULARY

pytestmark = [pytest.mark.model, pytest.mark.timeout(1800)]

_LENGTHS = {"cpu": (1, 17, 250, 257, 300, 511, 530, 700), "torch": (1, 257, 300, 511, 530)}
"""PyTorch, which is right everywhere and fast nowhere, has fewer."""
_NUM_TOKENS = 20
_NUM_BLOCKS = 400


@pytest.fixture(scope="module", params=["cpu", "torch"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[1, 2])
def num_threads(request: pytest.FixtureRequest) -> int:
    return int(request.param)


_WITH_ONE_THREAD = pytest.mark.parametrize("num_threads", [1], indirect=True)


@pytest.fixture(scope="module")
def alone(default_model: Path, kernels_folder: Path, backend: str) -> Subject:
    """Each alone with one thread."""
    prompts = random_prompts(_LENGTHS[backend], vocab_size=VOCABULARY, seed=8)
    options = {"num_blocks": _NUM_BLOCKS, "backend": backend, "kernels_folder": kernels_folder}
    with house_of(default_model, num_threads=1, **options) as house:
        return Subject.of(house, [[_ask(index, prompt)] for index, prompt in enumerate(prompts)])


@pytest.fixture
def subject(
    default_model: Path, kernels_folder: Path, backend: str, alone: Subject, num_threads: int
) -> Iterator[Subject]:
    """The same requests for an engine with so many threads."""
    options = {"num_blocks": _NUM_BLOCKS, "backend": backend, "kernels_folder": kernels_folder}
    with house_of(default_model, num_threads=num_threads, **options) as house:
        yield Subject(house, alone.requests, alone.alone)


def _ask(index: int, prompt: list[int]) -> Submit:
    """A temperature of 2 makes every draw depend on the last digits of the whole distribution."""
    return Submit(
        key=SequenceKey(RequestId(f"r{index}"), 0),
        attempt=1,
        owner_id=OwnerId("owner"),
        tenant="tenant",
        prompt_ids=prompt,
        params=SamplingParams(max_tokens=_NUM_TOKENS, seed=index, temperature=2.0, ignore_eos=True),
    )


def test_together_in_steps_of_many_sizes(subject: Subject) -> None:
    subject.check(PLENTY)
    assert subject.house.largest_company >= 4


def test_in_chunks_that_end_anywhere(
    subject: Subject, backend: str, num_threads: int, request: pytest.FixtureRequest
) -> None:
    if backend == "torch" and num_threads > 1 and threads_differ():
        reason = "where PyTorch has AVX-512 without bf16, some sizes of step round otherwise with several threads"
        request.applymarker(pytest.mark.xfail(reason=reason, strict=False))
    subject.check(PLENTY | {"max_prefill_chunk": 99, "max_batch_tokens": 150})


@_WITH_ONE_THREAD
def test_preempted(subject: Subject, backend: str) -> None:
    """With memory for the longest of them alone."""
    num_blocks = -(-(max(_LENGTHS[backend]) + _NUM_TOKENS) // 16)
    memory = {"kv_limit_ratio": (num_blocks / _NUM_BLOCKS, num_blocks / _NUM_BLOCKS, 1.0)}
    assert subject.check(PLENTY, retuned=memory).preemptions_total >= (3 if backend == "cpu" else 2)


@_WITH_ONE_THREAD
def test_resumed_after_the_tokens_that_another_engine_delivered(subject: Subject) -> None:
    subject.check_resumed(PLENTY)


_ON_ANOTHER_PROCESSOR = """
import sys, pytest, torch
told = dict(torch.cpu.get_capabilities()) | {"avx512_bf16": False, "amx_bf16": False, "avx512_f": %r}
torch.cpu.get_capabilities = lambda: told
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


@pytest.mark.long
@pytest.mark.parametrize(("instructions", "has_avx512"), [("AVX512_CORE", True), ("AVX2", False)])
def test_with_pytorch_on_a_processor_without_bf16(instructions: str, has_avx512: bool) -> None:
    """The rows of a product and a tiny model's text, and the default model's logits where AVX-512 leaves time for them,
    with more threads than one.

    Threads that find no processor of their own must not spin while they wait.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {"ONEDNN_MAX_CPU_ISA": instructions, "OMP_NUM_THREADS": "4", "OMP_WAIT_POLICY": "PASSIVE"}
    here = Path(__file__).parent
    chosen = ["test_a_linear_row", "test_bf16_text and torch", *(["test_together and torch-2"] if has_avx512 else [])]
    done = subprocess.run(
        [
            *(sys.executable, "-c", _ON_ANOTHER_PROCESSOR % has_avx512),
            *(str(here / name) for name in ("test_decoder_arithmetic.py", "test_model_runner.py", Path(__file__).name)),
            *("-k", " or ".join(chosen)),
        ],
        cwd=here.parent.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert f"{8 if has_avx512 else 7} passed" in done.stdout, done.stdout
