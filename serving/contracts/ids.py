"""Identifiers, each its own type so that one cannot be passed for another."""

from typing import NewType

RequestId = NewType("RequestId", str)
"""One API call. Made by the server, never taken from a client (two clients may choose the same one)."""

OwnerId = NewType("OwnerId", str)
"""One incarnation of a process that submits requests and answers for them."""

EngineId = NewType("EngineId", str)
"""One incarnation of an engine process: a restarted engine has a new one."""

PoolName = NewType("PoolName", str)
"""Named capacity: the engines that serve one model under one set of tunables."""
