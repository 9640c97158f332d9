"""Simulates a measured comparison again: same requests, scheduler settings and seeds, modelled step times.

Acceptance is the synthetic one that the engine was given. Where the drafter's own acceptance was at work, its
law is taken from the first rollout of all policies, and the report judges by the others alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from tlt.sim.acceptance.laws import PerPosition
from tlt.sim.acceptance.process import Acceptance
from tlt.sim.model.assembly import Assembly
from tlt.sim.model.cluster import Cluster
from tlt.sim.model.drafter import DrafterConfig
from tlt.sim.model.engines.prefill import CACHE_BLOCK_TOKENS
from tlt.sim.model.engines.running_batch import Limits, most_emitted_of
from tlt.sim.model.phases import Phases
from tlt.sim.model.requests import StepRequests
from tlt.sim.model.sessions.turns import SessionWork, ToolConfig
from tlt.sim.steptimes.calibration import Calibration, load
from tlt.sim.steptimes.tables import StepCosts
from tlt.sim.validate.measured_acceptance import Detail, Differences, acceptance_on, differences
from tlt.traces.common.arrays import Floats
from tlt.traces.common.manifest import sealed
from tlt.traces.common.migrate import upgraded_settings
from tlt.traces.common.seeds import scheduler_rng
from tlt.traces.lengths.shipped import load_trace
from tlt.traces.results.simulated_replay import (
    PREDICTED,
    PREDICTED_COLUMNS,
    SIMULATED_REPLAY,
    CalibratedRange,
    SimulatedPolicy,
    SimulatedReplay,
)
from tlt.traces.runs.acceptance_counts import NOTHING, position_counts
from tlt.traces.runs.engine_steps import read_engine_steps
from tlt.traces.runs.records import RECORDS, read_records
from tlt.traces.runs.runfolder import RunFolder, Summary, read_struct, write_json, write_table
from tlt.traces.sessions.files import read_sessions
from tlt.traces.sources import open_runs
from tlt.version import VERSION
from tltsched.draft_config import OFF, chain
from tltsched.errors import InputError
from tltsched.event_log import Record, SchedulerSetup
from tltsched.policies.base import WhenOff

LENGTHS, TURNS = "lengths.parquet", "turns.parquet"  # of a replay, beside its run folders
READS_HIDDEN = ("eagle3", "mtp")  # vLLM computes the last block of a cached prefix again for them
NO_LIMIT_TOKENS = 1e12  # of a KV cache whose size is not on record; a run that preempts shows in its steps


class EngineSettings(msgspec.Struct, frozen=True):
    """The part of a measured run's settings that the simulated engine shares."""

    max_running: int
    temperature: float = 1.0
    prefix_caching: bool = False


class EngineFacts(msgspec.Struct, frozen=True):
    """The part of engine.json that is needed here."""

    kv_tokens: int = 0  # 0: not recorded
    block_tokens: int = 0  # likewise


class DrafterSettings(msgspec.Struct, frozen=True):
    """The part of a measured run's settings that says how drafts are accepted."""

    synthetic_survival: tuple[float, ...] = ()
    kind: str = "eagle3"


class PhaseSettings(msgspec.Struct, frozen=True):
    """The phases of a replay that were waits."""

    reward_s: float = 0.0
    logprob_s: float = 0.0
    policy_update_s: float = 0.0


class MeasuredSettings(msgspec.Struct, frozen=True):
    """The parts of a measured run's resolved_config.json that are needed here."""

    engine: EngineSettings
    drafter: DrafterSettings = DrafterSettings()
    phases: PhaseSettings = PhaseSettings()


class ReplayPhases(Phases):
    """The waits of a replay as they were set, and loading weights as it was timed in the first step."""

    def __init__(self, waits: PhaseSettings, weight_sync_s: float) -> None:
        self.reward_times_s = (waits.reward_s, 0.0)
        self._waits = waits
        self._weight_sync_s = weight_sync_s

    def seconds(self, phase: str, responses: int, tokens: int, share: float = 1.0) -> float:
        """Return the seconds of `phase`, whatever the step has."""
        del responses, tokens, share
        return self._weight_sync_s if phase == "weight_sync" else float(getattr(self._waits, f"{phase}_s"))


class MeasuredPolicy:
    """One measured run folder."""

    def __init__(self, path: Path) -> None:
        """Read what the simulation needs; raises InputError where a file is missing or of another form."""
        folder = RunFolder(path)
        self.path = path
        self.summary = folder.summary()
        if self.summary.kind != "measured":
            raise InputError(
                "run folder", f"{path}, a {self.summary.kind} run", "a measured run",
                "give the folder that `tlt real replay` or the plugin wrote",
            )  # fmt: skip
        self.responses = folder.responses().sort_values(["step", "request"], ignore_index=True)
        self.settings = read_struct(path / "resolved_config.json", MeasuredSettings)
        self.setup = read_struct(path / "scheduler.json", SchedulerSetup)
        engine = path / "engine.json"
        facts = read_struct(engine, EngineFacts) if engine.is_file() else EngineFacts()
        self.kv_tokens = facts.kv_tokens
        self.block_tokens = facts.block_tokens or CACHE_BLOCK_TOKENS
        policy = self.setup.policy.build(scheduler_rng(0, 0), self.setup.step_times)
        self.when_off: WhenOff = policy.when_off
        self.most_emitted = most_emitted_of(policy.draft_configs)
        self.drafts = self.when_off != "not_configured" or any(draft.depth for draft in policy.draft_configs)
        self.spec = self.setup.cluster.schedule_spec()
        self.trainers = self.summary.workers - self.setup.workers
        self.sessions = read_sessions(path.parent / TURNS) if folder.sessions() is not None else None
        ids = self.responses.groupby("step", sort=True)["request"]
        whole = all((rows.to_numpy() == np.arange(len(rows))).all() for _, rows in ids)
        steps = self.responses["step"].unique()
        whole = whole or not self.spec.keeps_order  # else ids go on through the run
        if not whole or (steps != np.arange(len(steps))).any():
            raise InputError(
                "run folder", str(path), "a measured run with steps and requests from 0 on",
                "give the folder that `tlt real replay` wrote",
            )  # fmt: skip

    @property
    def compares(self) -> bool:
        """Whether drafts were accepted by comparing distributions: not greedily, nor at given rates."""
        settings = self.settings
        return self.drafts and settings.engine.temperature > 0 and not settings.drafter.synthetic_survival

    def phases(self) -> Phases:
        """Return how long the phases of a replay take."""
        spent = RunFolder(self.path).intervals()
        first = spent[(spent["cause"] == "weight_sync") & (spent["step"] == 0)]
        loading = first[first["worker"] < self.setup.workers]
        seconds = (loading["end_s"] - loading["start_s"]).groupby(loading["worker"]).sum()
        return ReplayPhases(self.settings.phases, float(seconds.mean()) if len(seconds) else 0.0)

    def records(self) -> Iterable[Record]:
        """Return the recorded events and commands."""
        return read_records(self.path / RECORDS)

    def requests(self, unlike: Differences) -> list[StepRequests]:
        """Return the requests, rollout by rollout, with what their kinds say of their acceptance.

        A schedule that chooses among responses draws from the lengths of the whole replay, which stand beside
        the run folder; raises InputError where they do not.
        """
        if self.spec.keeps_order:
            responses = self.responses.assign(offset=unlike.offsets(self.path, self.responses))
        else:
            rows = load_trace(str(self.path.parent / LENGTHS)).rows
            numbered = rows.groupby("step")["prompt_id"].transform(lambda ids: pd.factorize(ids)[0])
            responses = rows.assign(group=numbered, offset=0.0)
        return [
            StepRequests(
                group=rows["group"].to_numpy(np.int64),
                prompt_tokens=rows["prompt_tokens"].to_numpy(np.int64),
                response_tokens=rows["response_tokens"].to_numpy(np.int64),
                truncated=rows["truncated"].to_numpy(bool),
                offset=rows["offset"].to_numpy(np.float64),
                # Sessions stand in the order of steps and requests.
                session=None if self.sessions is None else rows.index.to_numpy(np.int64),
            )
            for _, rows in responses.groupby("step", sort=True)
        ]


def simulate_replay(measured: Path, calibration: Path, out: Path, detail: Detail = "kind of prompt") -> None:
    """Simulate every policy of the measured comparison (or run) `measured` into the comparison folder `out`.

    `calibration` is a calibration.json (or the name of a shipped one); `detail` says what is used of how
    requests differ in acceptance. Raises InputError if `measured` is not a measured comparison or the
    calibration cannot be read.
    """
    fitted = load(str(calibration))
    source = open_runs(measured)
    comparison = source.comparison()
    policies = [MeasuredPolicy(folder) for folder in source.folders]
    law, steps = acceptance_of(policies)
    unlike = Differences()
    if law is not None and steps:
        drafting = [policy.path for policy in policies if policy.drafts]
        unlike = differences(drafting, np.array(steps), detail)
    simulated = [
        _simulate(policy, fitted, law, unlike, detail, steps, out / name)
        for name, policy in zip(comparison.runs, policies, strict=True)
    ]
    with sealed(out):
        write_json(out / "comparison.json", comparison)
        result = SimulatedReplay(
            calibration=fitted.name,
            engine=fitted.engine,
            engine_version=fitted.engine_version,
            device=fitted.device,
            date=fitted.date,
            step_time_error=fitted.residuals.held_out_mean,
            calibrated=_calibrated(fitted),
            acceptance_source=law.source if law else "not used",
            acceptance_steps=steps,
            acceptance_parameters=unlike.figures(),
            alike_because=unlike.unknown_because,
            sampler_left_out=fitted.leaves_sampler_out and any(each.compares for each in policies),
            policies=tuple(simulated),
        )
        write_json(out / SIMULATED_REPLAY, result)


def acceptance_of(policies: list[MeasuredPolicy]) -> tuple[PerPosition | None, tuple[int, ...]]:
    """Return the law of acceptance, and the rollouts that it was measured on (none: it was given)."""
    given = policies[0].settings.drafter.synthetic_survival
    if not any(policy.drafts for policy in policies):
        return None, ()
    if given:
        return PerPosition(given, "given: the synthetic acceptance that the engine was told"), ()
    survival = measured_survival([record for policy in policies for record in policy.records()], step=0)
    if not len(survival):
        return PerPosition((0.0,), "measured: nothing was drafted in rollout 0"), (0,)
    return PerPosition(tuple(survival.tolist()), "measured: rollout 0 of the same run, all policies"), (0,)


def measured_survival(records: Iterable[Record], step: int) -> Floats:
    """Return P(accepted drafts >= j) for j = 1.., over what drafted as many in one rollout, [depth]."""
    return position_counts(records).get(step, NOTHING).survival()


def _simulate(
    policy: MeasuredPolicy,
    calibration: Calibration,
    law: PerPosition | None,
    unlike: Differences,
    detail: Detail,
    steps: tuple[int, ...],
    folder: Path,
) -> SimulatedPolicy:
    """Simulate one policy, write its run folder and its predicted engine steps."""
    drafter = DrafterConfig(exists=policy.drafts)
    acceptance = acceptance_on(law, unlike, detail, policy.path, np.array(steps)) if law else None
    costs, responses = simulate_into(
        folder, policy, calibration, acceptance, drafter, policy.phases(), unlike
    )
    engine_steps = predicted_engine_steps(policy, costs)
    if engine_steps is not None:
        with sealed(folder):
            write_table(folder / PREDICTED, engine_steps)
    return SimulatedPolicy(
        run=folder.name,
        same_placement=same_placement(policy, responses),
        break_even_length=_break_even(engine_steps, calibration) if engine_steps is not None else None,
    )


def simulate_into(
    folder: Path,
    policy: MeasuredPolicy,
    calibration: Calibration,
    acceptance: Acceptance | None,
    drafter: DrafterConfig,
    phases: Phases,
    unlike: Differences,
) -> tuple[StepCosts, pd.DataFrame]:
    """Simulate all steps of a policy with its requests and schedulers, and write the run folder.

    `unlike` says how requests of known kinds differ. Draws follow from the scheduler's seed. Returns the step
    times and the simulated responses.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = read_struct(policy.path / "resolved_config.json", dict[str, Any])
    write_json(folder / "resolved_config.json", upgraded_settings(settings))
    write_json(folder / "scheduler.json", policy.setup)
    max_running = policy.settings.engine.max_running
    costs = costs_of(policy, calibration)
    assembly = Assembly(
        setup=policy.setup,
        costs=costs,
        limits=Limits(
            max_running,
            policy.kv_tokens or NO_LIMIT_TOKENS,
            policy.settings.engine.prefix_caching,
            policy.most_emitted,
            block_tokens=policy.block_tokens,
            drops_block=policy.drafts and policy.settings.drafter.kind in READS_HIDDEN,
        ),
        sessions=None if policy.sessions is None else SessionWork(policy.sessions, ToolConfig()),
        acceptance=acceptance or Acceptance(PerPosition((0.0,))),
        drafter=drafter,
        phases=phases,
        trainers=policy.trainers,
    )

    def summary_of(cluster: Cluster) -> Summary:
        return msgspec.structs.replace(
            policy.summary,
            kind="simulated",
            wall_s=float(cluster.env.now),
            response_tokens=sum(int(row["response_tokens"]) for row in cluster.log.schedule_rows),
            cost_source=calibration.describe(),
            acceptance_source=acceptance.law.source if acceptance and policy.drafts else "not used",
            tool_version=VERSION,
            elapsed_s=None,
            preemptions=cluster.log.preemptions,
            warnings=(),
        )

    return costs, assembly.run_into(folder, policy.requests(unlike), summary_of).responses


def costs_of(policy: MeasuredPolicy, calibration: Calibration) -> StepCosts:
    """Return the step times of a measured run's engine."""
    return StepCosts(
        calibration.coefficients, policy.when_off, policy.settings.engine.max_running,
        calibration.chunk_tokens, 0, 0.0, calibration.mixes_prefill,
    )  # fmt: skip


def same_placement(policy: MeasuredPolicy, responses: pd.DataFrame) -> bool:
    """Return whether every request ran on the worker that it was simulated on.

    Where a schedule places by what has finished, another place follows from other times, and is no matter.
    """
    if policy.spec.watches or policy.sessions is not None:
        return True
    return bool((responses["worker"].to_numpy() == policy.responses["worker"].to_numpy()).all())


def predicted_engine_steps(policy: MeasuredPolicy, costs: StepCosts) -> pd.DataFrame | None:
    """Return the measured engine steps with what the law predicts for each; None where none were written."""
    rows = read_engine_steps(policy.path)
    if rows is None:
        return None
    batch, k = rows["batch"].to_numpy(np.int64), rows["k"].to_numpy(np.int64)
    predicted = np.zeros(len(rows))
    for depth in np.unique(k).tolist():
        same = k == depth
        table = costs.of(chain(depth))
        predicted[same] = table.fixed_s[np.minimum(batch[same], len(table.fixed_s) - 1)]
        predicted[same] += table.context_s_per_token * rows["context_tokens"].to_numpy()[same]
    verified = rows["drafted_tokens"].to_numpy() / np.maximum(batch, 1)
    steady = (rows["prompt_tokens"].to_numpy() == 0) & (batch > 0) & (np.rint(verified) == k)
    return rows.assign(predicted_s=predicted, steady=steady)[list(PREDICTED_COLUMNS)].astype(
        PREDICTED_COLUMNS
    )


def _break_even(engine_steps: pd.DataFrame, calibration: Calibration) -> float | None:
    """Return the time of the drafting engine steps over that of plain ones at equal batches and contexts."""
    drafting = engine_steps[(engine_steps["k"] > 0) & engine_steps["steady"]]
    if drafting.empty:
        return None
    coefficients = calibration.coefficients
    plain_s = coefficients.fixed_s(OFF, "not_configured", drafting["batch"].to_numpy())
    plain_s = plain_s + coefficients.kv_s_per_token * drafting["context_tokens"].to_numpy()
    weight = drafting["batch"].to_numpy()
    return float((drafting["predicted_s"].to_numpy() * weight).sum() / (plain_s * weight).sum())


def _calibrated(calibration: Calibration) -> CalibratedRange:
    ranges = calibration.ranges
    used = [point for point in calibration.points if not point.excluded]
    return CalibratedRange(
        batch=ranges.batch,
        draft_batch=ranges.draft_batch,
        context_tokens=ranges.context_tokens,
        held_tokens=max(point.batch * point.context_tokens for point in used),
    )
