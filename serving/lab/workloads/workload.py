"""What traffic is like: when requests come, of which classes, how long, and what is expected of their answers."""

from __future__ import annotations

import msgspec

from serving.lab.workloads.arrivals import Arrivals
from serving.lab.workloads.distributions import Lengths

SCHEMA_VERSION = 1


class Slo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a request must keep to count as goodput, in milliseconds; None asks nothing. `itl_ms` bounds the mean gap
    between two tokens of a stream (TPOT)."""

    ttft_ms: float | None = None
    itl_ms: float | None = None
    e2e_ms: float | None = None


class SharedPrefixes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`share` of a class's prompts begin with one of `count` texts of `tokens` tokens, which are part of their length
    (a prompt that is no longer than that is all prefix but one token)."""

    share: float
    tokens: int
    count: int = 1


class RequestClass(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Requests of one kind. `share` is a weight among the classes. `tenant` names who sends them (empty: the Lab's
    own), `priority` is the API's (lower is more urgent). `cancelled_share` of them are given up by their client when
    a random part of the answer has come."""

    name: str
    prompt_tokens: Lengths
    output_tokens: Lengths
    share: float = 1.0
    tenant: str = ""
    priority: int = 0
    prefixes: SharedPrefixes | None = None
    streaming_share: float = 1.0
    cancelled_share: float = 0.0
    slo: Slo = Slo()


class Workload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Traffic, and how much of it: until `duration_seconds` have passed or `num_requests` were sent, whichever is
    first; one of them at least is given. What is due in the first `warm_up_seconds` is played and not measured. The
    same `seed` gives the same requests. `source` says where its figures come from."""

    name: str
    arrivals: Arrivals
    classes: tuple[RequestClass, ...]
    about: str = ""
    source: str = ""
    duration_seconds: float | None = None
    num_requests: int | None = None
    warm_up_seconds: float = 0.0
    seed: int = 1
    schema_version: int = SCHEMA_VERSION


class PlannedRequest(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One request of a workload that is played. `due_seconds` is None in a closed loop, whose clients send one after
    the other. `prefix` is which of its class's shared texts the prompt begins with (None: none), `num_prefix_tokens` of
    its tokens. Its client goes away after `cancel_after_tokens` tokens (None: never)."""

    index: int
    due_seconds: float | None
    request_class: str
    tenant: str
    priority: int
    num_prompt_tokens: int
    num_output_tokens: int
    prefix: int | None
    num_prefix_tokens: int
    is_streamed: bool
    cancel_after_tokens: int | None
