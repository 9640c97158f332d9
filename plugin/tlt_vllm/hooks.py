"""What is mixed into vLLM's scheduler: K goes into the plan of each engine step, and its facts come out.

Only attributes of vLLM's objects are used here, so that this file loads without vLLM.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
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
    had drafts verified; `prompts` are (its name, tokens prefilled, tokens in its cache before), of those in
    prefill.
    """

    batch: int
    context_tokens: int
    prompt_tokens: int
    drafted_tokens: int
    accepted_by_position: tuple[int, ...]
    drafts: list[tuple[str, int, int, int]]
    preempted: int
    prompts: list[tuple[str, int, int]]


class EngineStepHooks:
    """Mixed into vLLM's scheduler class, before it: K goes in, facts come out.

    A subclass says what K is to be and takes the facts.
    """

    running: list[Any]
    requests: dict[str, Any]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._planned_rows: deque[list[Row]] = deque()

    def _on_plan(self, plan: Any, rows: list[Row]) -> None:
        """Take a plan in; K may be written into it here, before vLLM reserves room for the drafts."""
        raise NotImplementedError

    def _on_output(self, output: Any, engine_step: EngineStep) -> None:
        """Take in what came back of an engine step, before vLLM applies its outputs."""
        raise NotImplementedError

    def _guarded(self, call: Callable[..., None], *args: Any) -> None:
        """Call one of ours; a subclass that must not stop the engine catches what it raises."""
        call(*args)

    def _update_after_schedule(self, plan: Any) -> None:
        self._guarded(self._read_plan, plan)
        super()._update_after_schedule(plan)  # type: ignore[misc]

    def update_from_output(self, plan: Any, output: Any) -> Any:
        """Read the facts of an engine step before vLLM applies its outputs."""
        if plan.total_num_scheduled_tokens:
            self._guarded(self._read_output, plan, output)
        return super().update_from_output(plan, output)  # type: ignore[misc]

    def _read_plan(self, plan: Any) -> None:
        rows = rows_of(self.requests, plan) if plan.total_num_scheduled_tokens else []
        if rows:
            self._planned_rows.append(rows)
        self._on_plan(plan, rows)

    def _read_output(self, plan: Any, output: Any) -> None:
        self._on_output(output, engine_step_of(self._planned_rows.popleft(), plan, output))


def rows_of(requests: Mapping[str, Any], plan: Any) -> list[Row]:
    """Return the requests of a plan as they are before vLLM moves them on."""
    drafts = plan.scheduled_spec_decode_tokens
    rows = []
    for name, tokens in plan.num_scheduled_tokens.items():
        request, drafted = requests[name], len(drafts.get(name, ()))
        before = request.num_computed_tokens
        # A request that was preempted computes its response again: more than one token that is no draft.
        prefill = before < request.num_prompt_tokens or tokens > 1 + drafted
        rows.append(Row(request, tokens, drafted, before, prefill))
    return rows


def engine_step_of(rows: list[Row], plan: Any, output: Any) -> EngineStep:
    """Return the facts of an engine step whose plan had these rows, before vLLM applies its outputs."""
    preempted = len(getattr(plan, "preempted_req_ids", None) or ())
    context = prompt = drafted = 0
    accepted: list[int] = []
    drafts: list[tuple[str, int, int, int]] = []
    prompts: list[tuple[str, int, int]] = []
    sampled, index = output.sampled_token_ids, output.req_id_to_index
    for row in rows:
        if row.prefill:
            context += row.context_tokens
            prompt += row.scheduled_tokens
            prompts.append((row.request.request_id, row.scheduled_tokens, row.context_tokens))
            continue
        request, own = row.request, row.drafted_tokens
        context += request.num_tokens - 1  # all but the newest token are in the cache
        if own:
            drafted += own
            name = request.request_id
            gained = max(len(sampled[index[name]]) - 1, 0)
            accepted += [0] * (own - len(accepted))
            for position in range(gained):
                accepted[position] += 1
            drafts.append((name, request.num_output_tokens, own, gained))
    return EngineStep(len(rows), context, prompt, drafted, tuple(accepted), drafts, preempted, prompts)
