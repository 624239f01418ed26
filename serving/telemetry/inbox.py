"""What waits in a pool's inbox, unread by any engine."""

from __future__ import annotations

from typing import cast

from redis.asyncio import Redis

from serving.contracts import keys
from serving.contracts.decoding import decode_or_none
from serving.contracts.ids import PoolName
from serving.contracts.messages import decode_submit

_COUNTED_ENTRIES = 500


async def count_inbox(redis: Redis, pool: PoolName) -> tuple[int, int]:
    """Entries that no engine has read, and their tokens: counted of the first 500, reckoned from these beyond."""
    num_entries = int(await redis.xlen(keys.inbox(pool)))
    if not num_entries:
        return 0, 0
    entries = cast(
        "list[tuple[bytes, dict[bytes, bytes]]]", await redis.xrange(keys.inbox(pool), count=_COUNTED_ENTRIES)
    )
    if not entries:
        return 0, 0
    num_tokens = sum(_count_tokens(fields.get(keys.FIELD, b"")) for _, fields in entries)
    return max(num_entries, len(entries)), num_tokens * max(num_entries, len(entries)) // len(entries)


def _count_tokens(message: bytes) -> int:
    # What cannot be understood counts nothing here: the engine that reads it will say what is wrong with it.
    submit = decode_or_none(decode_submit, message)
    return 0 if submit is None else len(submit.prompt_ids) + len(submit.generated_ids)
