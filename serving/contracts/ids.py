"""Identifiers, each its own type so that one cannot be passed for another."""

import re
from typing import NewType

RequestId = NewType("RequestId", str)
"""One API call. Made by the server, never taken from a client (two clients may choose the same one)."""

OwnerId = NewType("OwnerId", str)
"""One incarnation of a process that submits requests and answers for them."""

EngineId = NewType("EngineId", str)
"""One incarnation of an engine process: a restarted engine has a new one."""

PoolName = NewType("PoolName", str)
"""Named capacity: the engines that serve one model under one set of tunables."""

POOL_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
"""What a pool's name matches in full: it stands in addresses, Redis keys and names of groups of consoles."""

POOL_NAME_IN_WORDS = "1 to 64 letters, digits, '_', '-' or, not first, '.'"
