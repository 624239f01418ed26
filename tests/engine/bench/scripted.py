"""A runner whose work takes the time that a script says, on a clock of its own."""

from __future__ import annotations

from serving.engine.plan import StepPlan, StepResult, StepTimes


class ScriptedRunner:
    """Owns a clock that only its work moves: `fixed_seconds` a step and `token_seconds` a token, of which attention
    takes a quarter, preparing and sampling a tenth each."""

    def __init__(self, *, num_blocks: int = 1024, fixed_seconds: float = 0.01, token_seconds: float = 0.001) -> None:
        self.num_blocks = num_blocks
        self.block_size = 16
        self.max_model_len = 2048
        self.eos_token_ids = frozenset({0})
        self.plans: list[StepPlan] = []
        self.now = 100.0
        self._fixed_seconds = fixed_seconds
        self._token_seconds = token_seconds

    def clock(self) -> float:
        return self.now

    def run(self, plan: StepPlan) -> StepResult:
        self.plans.append(plan)
        seconds = self._fixed_seconds + plan.num_tokens * self._token_seconds
        self.now += seconds
        times = StepTimes(
            prepare_seconds=seconds * 0.1,
            forward_seconds=seconds * 0.8,
            sample_seconds=seconds * 0.1,
            attention_seconds=seconds * 0.25,
        )
        return StepResult([[7] if chunk.samples else [] for chunk in plan.chunks], times)
