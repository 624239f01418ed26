"""What an engine has room for, as far as its scheduling depends on it."""

from __future__ import annotations

import msgspec


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """KV blocks of `block_size` tokens, the model's longest context, the largest step that memory is kept for (None:
    any), and how many engines like this one a pool has."""

    num_blocks: int
    block_size: int
    max_model_len: int
    max_step_tokens: int | None = None
    num_engines: int = 1
