"""What is written down: one word an act. The console offers them as a filter in this order."""

from __future__ import annotations

from typing import Literal, get_args

Action = Literal[
    "signed in",
    "signed out",
    "sign-in failed",
    "sign-ins held back",
    "user made",
    "user changed",
    "password set",
    "password changed",
    "sessions ended",
    "tenant made",
    "tenant changed",
    "key made",
    "key revoked",
    "quotas changed",
    "pool made",
    "pool left out",
    "pool taken in again",
    "tunables changed",
    "tunables rolled back",
    "guardrail rolled back",
    "guardrail called off",
    "canary begun",
    "canary taken to all",
    "canary taken back",
    "engine drained",
    "engine resumed",
    "engine restarted",
    "request aborted",
    "prompt sent",
    "sample traffic sent",
    "sample traffic stopped",
    "alert rule made",
    "alert rule changed",
    "alert rule deleted",
    "webhook secret renewed",
    "autopilot switched on",
    "autopilot switched off",
    "autopilot paused",
    "autopilot resumed",
    "workload saved",
    "workload changed",
    "workload deleted",
    "run ordered",
    "run stopped",
    "experiment ordered",
    "experiment stopped",
    "prediction ordered",
]

SubjectKind = Literal[
    "user",
    "tenant",
    "key",
    "pool",
    "engine",
    "process",
    "request",
    "alert rule",
    "workload",
    "run",
    "experiment",
    "prediction",
]

ACTIONS: tuple[str, ...] = get_args(Action)
SUBJECT_KINDS: tuple[str, ...] = get_args(SubjectKind)
