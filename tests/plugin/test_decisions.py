"""Decision intervals of an engine that steps itself."""

from __future__ import annotations

from random import Random

import msgspec

from tlt.plugin.decisions import Decisions
from tlt.plugin.engine_step import EngineStepFacts
from tltsched.event_log import Record, RecordedWorker, Recorder
from tltsched.events import DecisionEnded
from tltsched.policies.static import StaticConfig
from tltsched.worker import WorkerScheduler


def facts(*accepted: int) -> EngineStepFacts:
    """Return an engine step of a batch of 5 that verified so many positions."""
    return EngineStepFacts(
        seconds=0.01, batch=5, context_tokens=500, prompt_tokens=0, drafted_tokens=5 * len(accepted),
        accepted_by_position=accepted, finished=(),
    )  # fmt: skip


def test_engine_steps_with_drafts_from_before_any_decision_belong_to_none() -> None:
    """Step times were measured at K = 4 in mid-rollout; the policy then drafts 2, two steps are in flight."""
    lines: list[bytes] = []
    policy = StaticConfig(draft_config="2").build(Random(0), None)  # noqa: S311
    scheduler = RecordedWorker(WorkerScheduler(0, policy), Recorder(lines.append))
    decisions = Decisions(scheduler, alive=())
    decisions.begin(0.0, 0, 0)
    assert decisions.planned(0.1, 5, lambda: 500, prompts=False) == 2
    for number, verified in enumerate([(4, 3, 1, 1), (4, 3, 0, 0), (3, 1), (2, 0)]):
        decisions.came(0.2 + number / 100, facts(*verified), 2, 5, lambda: 500)
    decisions.end(1.0)
    bodies = [msgspec.json.decode(line, type=Record).body for line in lines]
    (ended,) = [body for body in bodies if isinstance(body, DecisionEnded)]
    assert (ended.engine_steps, ended.request_steps) == (2, 10)
    assert ended.accepted_by_position == (5, 1)
