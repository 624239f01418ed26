"""What the console's words mean: one sentence each, the same wherever one is shown."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType


@dataclasses.dataclass(frozen=True, slots=True)
class Term:
    """A word as it is written on a page, and one sentence that explains it to somebody who has not met it."""

    name: str
    meaning: str


TERMS: Mapping[str, Term] = MappingProxyType(
    {
        # Requests and their way
        "request": Term("request", "One call of the API, from its arrival until it is finished, refused or aborted."),
        "sequence": Term("sequence", "The tokens that one answer grows in; a request has one for each choice it asks."),
        "waiting": Term("waiting", "Sequences that have arrived and that no step has taken up yet."),
        "waiting_tokens": Term("waiting tokens", "Tokens of the prompts that wait: how much work stands in the queue."),
        "running": Term("running", "Sequences in the batch: each step adds to every one of them."),
        "lane": Term("lane", "Long prompts wait in a queue of their own, so that short ones need not wait for them."),
        "priority": Term("priority", "Lower numbers are more urgent; below 0 a request may use the places kept free."),
        "finished": Term("finished", "The answer came to its end: a stop, or the length that was asked for."),
        "refused": Term("refused", "Turned away with a reason: full, over quota, too late or not possible."),
        "aborted": Term("aborted", "Ended by its client, or by an operator, before the answer was complete."),
        "failed": Term("failed", "Ended by an error on our side."),
        "outcome": Term("outcome", "How a request ended: finished, refused, aborted or failed."),
        "finish_reason": Term("finish reason", "Why an answer ended: a stop, its length, a tool call or an abort."),
        # The batch
        "step": Term("step", "One pass of the model over the whole batch: schedule, run, update."),
        "step_time": Term("step time", "How long one step takes: nobody in the batch gets tokens faster than that."),
        "batch": Term("batch", "The sequences that one step computes together."),
        "batch_tokens": Term(
            "tokens a step", "Prompt and answer tokens that one step computes, up to max_batch_tokens."
        ),
        "prefill": Term("prefill", "Computing a prompt's tokens, many at a time, before the first answer token."),
        "decode": Term("decode", "Computing an answer, one token a sequence and step."),
        "chunk": Term("chunk", "The part of a long prompt that one step computes."),
        "preemption": Term(
            "preemption", "A running sequence goes back to the queue as memory is short; it is recomputed."
        ),
        "held": Term("held", "It runs, but this step computed none of its tokens: the budget went to others."),
        "padding": Term("padding", "Work that a rectangular batch would waste on places that hold no token."),
        "continuous_batching": Term("continuous batching", "Sequences join and leave the batch between any two steps."),
        "token_budget": Term("token budget", "The most tokens of one step, prefill and decode together."),
        "batch_window": Term(
            "batch window", "How long the first that waits may wait for company before it is scheduled."
        ),
        "speculation": Term(
            "speculation", "Next tokens are guessed from the text itself; the right ones are made several in a step."
        ),
        "tokens_per_second": Term("tokens/s", "Prompt tokens computed and answer tokens generated in a second."),
        # Memory
        "kv": Term("KV memory", "What the model remembers of each token; when it is full, nobody else can join."),
        "kv_cached": Term("cached", "KV blocks that nobody uses now, kept because a later prompt may begin alike."),
        "block": Term("block", "The unit of KV memory: room for 16 tokens."),
        "prefix_hit": Term(
            "prefix hits", "Share of prompt tokens found computed already, by a prompt that began alike."
        ),
        "memory": Term("memory", "The accelerator's memory in use; without one, what the engine's process holds."),
        "utilisation": Term("busy", "How much of the time the accelerator, or else the engine, was at work."),
        # Intervals
        "queue_time": Term("queue time", "From a request's arrival until a step first takes it up."),
        "ttft": Term("TTFT", "Time to first token: from a request's arrival until its first token is sent."),
        "itl": Term("ITL", "Inter-token latency: the gap between two tokens of one stream."),
        "tpot": Term("TPOT", "Time per output token: the mean gap between the tokens of one answer."),
        "e2e": Term("E2E", "End to end: from a request's arrival until its last token is sent."),
        "percentile": Term("percentile", "p95 = 2 s says that 95 of 100 were as fast as 2 s or faster."),
        "percentile_window": Term("percentiles over", "How much of the past each percentile is taken over."),
        # Objectives
        "slo": Term("SLO", "The objective that an operator set for TTFT and ITL: what users are to be given."),
        "goodput": Term("goodput", "Requests a second that were answered within the objectives."),
        # Steering
        "tunable": Term("tunable", "A setting of the scheduler that changes live, between two steps, with no restart."),
        "version": Term("version", "One state of all tunables: who changed what, when and why."),
        "guardrail": Term("guardrail", "Watches a change and takes it back by itself if a bound is broken too long."),
        "canary": Term("canary", "A change is tried on one engine first, then given to all or taken back."),
        "preset": Term("preset", "Values that suit a kind of use; the difference is shown before they are applied."),
        "roll_back": Term("roll back", "Make a new version that is equal to an older one."),
        "mode": Term("mode", "Continuous: join between steps; static: a batch runs to its end before the next forms."),
        "alert": Term("alert", "A rule was broken for longer than it allows: a figure beyond its bound."),
        # The fleet
        "pool": Term("pool", "The engines that serve one model under one set of tunables."),
        "engine": Term("engine", "The process that holds the model and computes the batch, one for each accelerator."),
        "heartbeat": Term("heartbeat", "A sign of life each engine gives; without it others take over its requests."),
        "drain": Term("drain", "Finish all that was begun and accept nothing new."),
        "load": Term("load", "Share of the time in which the engine computed a step."),
        # Who asks
        "tenant": Term("tenant", "Who is served: a team or an application, with keys and quotas of its own."),
        "api_key": Term("API key", "The secret by which a tenant's calls are known; it is shown once."),
        "quota": Term("quota", "The most that a tenant may use in a minute or a day."),
        "waterfall": Term("waterfall", "One request's time, part by part: admission, queue, prefill, decode."),
        # The Lab
        "workload": Term("workload", "What traffic is like: when requests come, how long they are, what they expect."),
        "run": Term("run", "A workload, played once as clients would, with all that was measured meanwhile."),
        "sweep": Term("sweep", "One setting takes one value after another, and the same workload is played at each."),
        "knee": Term("knee", "The point beyond which more load or a larger batch gains little and costs much latency."),
        "capacity": Term("capacity", "The requests a second that are served for ever without the queue growing."),
        "overload_test": Term(
            "overload test", "More than capacity is sent on purpose, to see what is refused and how."
        ),
        "backpressure": Term("backpressure", "What is too much is refused early, with a true time to come back."),
        "open_loop": Term("open loop", "Requests come when they are due, however long the answers before them take."),
        "closed_loop": Term("closed loop", "So many clients, each of which asks again when its last answer has come."),
        "coordinated_omission": Term(
            "coordinated omission", "A tester that waits for slow answers sends less just then, and hides how slow."
        ),
        "warm_up": Term("warm-up", "The beginning of a run, which is played and counts in no figure."),
        "mixture": Term("mixture", "Short and long requests at once, each kind a class of its own."),
        "fingerprint": Term(
            "fingerprint", "Model, processor, precision, limits and versions that a result was measured on."
        ),
        "stale": Term("stale", "Measured on another model, processor, precision, context limit or version than now."),
        "confidence": Term("confidence interval", "Where the true value is in 95 of 100 cases, going by the repeats."),
        "what_if": Term("what-if", "A change is simulated before it is made: what it would do to today's traffic."),
        "simulated": Term("simulated", "Played by the real scheduler on a virtual clock; no model computed anything."),
        "autopilot": Term("autopilot", "Moves named tunables by itself, within bounds, to hold an SLO."),
        "three_ways": Term("three ways", "Static, windowed and continuous batching, with the same requests each."),
    }
)


def meaning_of(key: str) -> Term:
    """The term of this key. Raises KeyError for one that nobody explained."""
    return TERMS[key]
