"""What makes a scheduler of vLLM take its K from outside."""

from __future__ import annotations

from collections import deque
from typing import Any

from tlt.plugin.hooks import EngineStep, EngineStepHooks, Row


class SteppedHooks(EngineStepHooks):
    """The scheduler of an engine that is stepped from outside, with a K for each engine step."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.next_k = 0
        self.engine_steps: deque[EngineStep] = deque()

    def _on_plan(self, plan: Any, rows: list[Row]) -> None:
        del rows
        plan.num_spec_tokens_to_schedule = self.next_k

    def _on_output(self, output: Any, engine_step: EngineStep) -> None:
        del output
        self.engine_steps.append(engine_step)
