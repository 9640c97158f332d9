"""Makes the run folder of one replayed policy from its finished rollouts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from tlt.realrun.config import RealConfig, SessionsConfig
from tlt.realrun.driver.engine_record import EngineRecord
from tlt.realrun.driver.plan import PolicyPlan
from tlt.realrun.driver.step import LiveStep, Loss, Response
from tlt.realrun.driver.write_run import Sources, write_measured
from tlt.realrun.replay.workload import Workload
from tlt.traces.common.manifest import sealed
from tlt.traces.runs.runfolder import SESSION_COLUMNS, RunFolder, SessionFacts
from tlt.traces.runs.training import write_kinds
from tltsched.sessions.routing import parse_routing


def write_run(
    folder: Path, config: RealConfig, plan: PolicyPlan, rollouts: Sequence[LiveStep], losses: Sequence[Loss],
    workload: Workload, origin: Callable[[int, int], tuple[int, int]], engine: EngineRecord,
) -> None:  # fmt: skip
    """Write all files of a run folder; `losses` are the workers that died in any policy's turn.

    `origin(step, request)` gives the step and the row of the workload that a request was made from.
    """

    def truncated(step: int, response: Response) -> bool:
        return workload.truncated(*origin(step, response.request), response.tokens)

    sources = Sources(
        lengths=workload.describe(), acceptance=_acceptance(config), warnings=_warnings(config, losses)
    )
    with sealed(folder):
        write_measured(folder, config, plan, engine, rollouts, sources, truncated)
        if config.sessions.file:
            facts, rows = session_facts(config.sessions, rollouts)
            RunFolder(folder).write_sessions(facts, rows)
        if plan.spec.keeps_order:
            write_kinds(folder, {rollout.step: workload.kinds(rollout.step) for rollout in rollouts})


def session_facts(config: SessionsConfig, rollouts: Sequence[LiveStep]) -> tuple[SessionFacts, pd.DataFrame]:
    """Return what sessions met with, and a row a session (SESSION_COLUMNS)."""
    turns = [turn for rollout in rollouts for turn in rollout.turns]
    rows = [(rollout.step, *session) for rollout in rollouts for session in sorted(rollout.sessions)]
    facts = SessionFacts(
        routing=parse_routing(config.routing).rule,
        tools_at_once=config.tools_at_once,
        tool_wait_kv="keep",
        turns=len(turns),
        asked_tokens=sum(turn.asked for turn in turns),
        found_tokens=sum(turn.found for turn in turns),
        again_tokens=sum(turn.again for turn in turns),
        timeouts=0,
    )
    return facts, pd.DataFrame(rows, columns=list(SESSION_COLUMNS)).astype(SESSION_COLUMNS)


def _acceptance(config: RealConfig) -> str:
    drafter = config.drafter
    if drafter.synthetic_survival:
        rates = ", ".join(f"{rate:g}" for rate in drafter.synthetic_survival)
        return f"assumed: the engine accepts drafts at given rates by position ({rates})"
    return f"measured: drafter {drafter.kind}"


def _warnings(config: RealConfig, losses: Sequence[Loss]) -> tuple[str, ...]:
    warnings = [
        f"worker {loss.worker} died in rollout {loss.step} of {loss.policy} ({loss.reason}): what it had not "
        "reported was generated again by the others, and its time from then on is booked as idle"
        for loss in losses
    ]
    if config.model.random_weights:
        warnings.append("the model has random weights: times are real, text and acceptance are not")
    return tuple(warnings)
