"""What is mixed into vLLM's scheduler: K goes into the plan of each engine step, and its facts come out.

Only attributes of vLLM's objects are used here, so that this file loads without vLLM.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import msgspec


class Row(msgspec.Struct, gc=False):
    """One request in one planned engine step."""

    request: Any
    scheduled_tokens: int
    drafted_tokens: int
    context_tokens: int  # in its cache when the engine step was planned; drafts in flight counted as accepted
    prefill: bool


class EngineStep(msgspec.Struct, gc=False):
    """What came back of one engine step.

    `drafts` are (vLLM's name of the request, tokens of its response before, drafted, accepted), of those that
    had drafts verified.
    """

    batch: int
    context_tokens: int
    prompt_tokens: int
    drafted_tokens: int
    accepted_by_position: tuple[int, ...]
    drafts: list[tuple[str, int, int, int]]
    preempted: int


class EngineStepHooks:
    """Mixed into vLLM's scheduler class, before it: K goes in, facts come out."""

    running: list[Any]
    requests: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.next_k = 0
        self.engine_steps: deque[EngineStep] = deque()
        self._planned: deque[list[Row]] = deque()

    def _update_after_schedule(self, plan: Any) -> None:
        """Set K before vLLM reserves room for the drafts of this engine step."""
        plan.num_spec_tokens_to_schedule = self.next_k
        if plan.total_num_scheduled_tokens:
            self._planned.append([self._row(name, plan) for name in plan.num_scheduled_tokens])
        super()._update_after_schedule(plan)  # type: ignore[misc]

    def update_from_output(self, plan: Any, output: Any) -> Any:
        """Read the facts of an engine step before vLLM applies its outputs."""
        if plan.total_num_scheduled_tokens:
            preempted = len(getattr(plan, "preempted_req_ids", None) or ())
            self.engine_steps.append(_engine_step(self._planned.popleft(), output, preempted))
        return super().update_from_output(plan, output)  # type: ignore[misc]

    def _row(self, name: str, plan: Any) -> Row:
        request, tokens = self.requests[name], plan.num_scheduled_tokens[name]
        drafted = len(plan.scheduled_spec_decode_tokens.get(name, ()))
        before = request.num_computed_tokens
        # A request that was preempted computes its response again: more than one token that is no draft.
        prefill = before < request.num_prompt_tokens or tokens > 1 + drafted
        return Row(request, tokens, drafted, before, prefill)


def _engine_step(rows: list[Row], output: Any, preempted: int) -> EngineStep:
    context = prompt = drafted = 0
    accepted: list[int] = []
    drafts: list[tuple[str, int, int, int]] = []
    for row in rows:
        if row.prefill:
            context += row.context_tokens
            prompt += row.scheduled_tokens
            continue
        context += row.request.num_tokens - 1  # all but the newest token are in the cache
        drafted += row.drafted_tokens
        if row.drafted_tokens:
            name = row.request.request_id
            gained = max(len(output.sampled_token_ids[output.req_id_to_index[name]]) - 1, 0)
            accepted += [0] * (row.drafted_tokens - len(accepted))
            for position in range(gained):
                accepted[position] += 1
            drafts.append((name, row.request.num_output_tokens, row.drafted_tokens, gained))
    return EngineStep(len(rows), context, prompt, drafted, tuple(accepted), drafts, preempted)
