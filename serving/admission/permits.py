"""What the door hands out, and what it is asked for. Values only."""

from __future__ import annotations

import dataclasses
import datetime

from serving.admission.accounts import Account
from serving.contracts.ids import PoolName


class PermitLost(Exception):
    """The permit counts no more, its lease having ended or Redis having lost its data: close it, and enter anew. Never
    reaches a client."""


@dataclasses.dataclass(frozen=True, slots=True)
class Weight:
    """What a request takes up: in the waiting room its sequences, and its prompt's tokens over all of them; of its
    account's quotas the `charged_tokens`, those of the prompt and of the longest answers that it may have."""

    sequences: int
    tokens: int
    charged_tokens: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Permit:
    """Leave to wait in a pool's waiting room, charged to an account on `day` (of UTC)."""

    permit_id: str
    pool: PoolName
    weight: Weight
    account: Account
    day: datetime.date
