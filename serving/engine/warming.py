"""What an engine does before the first request: everything that is made at its first use is made by then."""

from __future__ import annotations

import gc

from serving.contracts.ids import OwnerId, RequestId
from serving.contracts.messages import SequenceKey, Submit
from serving.contracts.sampling import SamplingParams
from serving.contracts.tunables import Tunables
from serving.engine.engine import Engine
from serving.engine.plan import Runner

_OWNER = OwnerId("warming")
_NUM_SEQUENCES = 32
_PROMPT_TOKENS = 6
_OUTPUT_TOKENS = 3
_MAX_STEPS = 64


def warm_up(runner: Runner) -> None:
    """Run steps of prefill and of decode as large as the defaults have them, half of them sampled, and throw the tokens
    away.

    The engine that takes `runner` afterwards knows nothing of it: blocks are its own to give out. What cannot be
    computed here is no reason not to start, and is told by the first request that meets it.
    """
    engine = Engine(runner, tunables=Tunables())
    token_id = max(0, min(runner.eos_token_ids, default=0))
    for index in range(_NUM_SEQUENCES):
        engine.submit(_submit(index, token_id=token_id))
    for _ in range(_MAX_STEPS):
        if not engine.has_work or engine.is_broken:
            break
        engine.step()
    engine.hand_back()
    while engine.has_work:
        engine.step()  # so that nothing is in flight any more


def set_aside() -> None:
    """Keep Python's collector of cycles from all objects that there are by now, libraries' above all. Whenever enough
    new ones have come, it looks at every one it knows, and no step runs meanwhile: for as long as dozens of steps of a
    small model take, where it knows all those of PyTorch."""
    gc.collect()
    gc.freeze()


def _submit(index: int, *, token_id: int) -> Submit:
    params = SamplingParams(
        max_tokens=_OUTPUT_TOKENS,
        seed=index,
        temperature=float(index % 2),
        top_p=0.9 if index % 4 == 1 else 1.0,
        ignore_eos=True,
    )
    return Submit(
        key=SequenceKey(RequestId(f"warming-{index}"), 0),
        attempt=1,
        owner_id=_OWNER,
        tenant=f"warming-{index}",  # none finds another's prefix
        prompt_ids=[token_id] * _PROMPT_TOKENS,
        params=params,
    )
