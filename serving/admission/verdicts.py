"""What the door decides from counts alone: pure functions, which the simulator asks too."""

from __future__ import annotations

from serving.admission.permits import Weight
from serving.contracts.tunables import Tunables


def overfills_queue(waiting: Weight, asked: Weight, *, tunables: Tunables) -> bool:
    """Whether what is asked for does not fit beside all that waits; `charged_tokens` play no part. It is what the
    script `ENTER` decides in Redis."""
    too_many = waiting.sequences + asked.sequences > tunables.max_queue_requests
    return too_many or waiting.tokens + asked.tokens > tunables.max_queue_tokens
