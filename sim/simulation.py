"""Builds a cluster from a configuration, runs it, and writes the run folder."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import simpy

from sim.acceptance import Acceptance, AcceptanceLaw, Geometric, PerPosition, PublishedTree
from sim.calibration import Calibration, load
from sim.cluster import Cluster
from sim.coefficients import Coefficients
from sim.config import AcceptanceConfig, Config
from sim.costs import StepCosts
from sim.drafter import Drafter
from sim.drift import load_drift
from sim.engine import Engine, JumpEngine
from sim.exact_engine import ExactEngine
from sim.gpus import GPUS
from sim.memory import kv_tokens
from sim.phases import PhaseTimes
from sim.pool import MARGIN_TOKENS, Limits
from sim.roofline import roofline
from sim.worker import Worker
from sim.workload import describe_lengths, steps_of
from tltsched.arms import OFF
from tltsched.errors import InputError, look_up
from tltsched.record import (
    RecordedCluster,
    RecordedWorker,
    Recorder,
    SchedulerSetup,
    build_cluster,
    build_worker,
)
from tltsched.speculation import PolicySpec
from tltsched.speculation.base import Policy
from tltsched.steptime import AnyTimes
from traces.models import MODELS
from traces.runfolder import RunFolder, Summary, write_json
from traces.schema import Trace
from traces.seeds import scheduler_rng


def _probe(spec: PolicySpec) -> Policy:
    return spec.build(random.Random(0), AnyTimes())  # noqa: S311 -- simulation, not security


def _law(config: AcceptanceConfig) -> AcceptanceLaw:
    if config.kind == "published_tree":
        return PublishedTree()
    if config.kind == "geometric":
        return Geometric(config.rate)
    return PerPosition(config.survival_by_position)


class Simulation:
    """One policy on one workload; `run` may be called once."""

    def __init__(self, config: Config, trace: Trace, coefficients: Coefficients | None = None) -> None:
        """`coefficients` replaces the fitted ones, to see what their uncertainty does."""
        assert not isinstance(config.policy, str), "resolve() turns names into settings"
        self.config = config
        self.trace = trace
        self.shape = look_up(MODELS, "hardware.model", config.hardware.model)
        self.gpu = look_up(GPUS, "hardware.gpu", config.hardware.gpu)
        self.calibration: Calibration | None = None
        if config.cost.source != "roofline":
            self.calibration = load(config.cost.source)
        fitted = coefficients or (self.calibration.coefficients if self.calibration else None)
        self.coefficients = fitted or roofline(self.shape, self.gpu, config.hardware.tp, config.cost.roofline)
        self.policy = _probe(config.policy)
        self.law = _law(config.acceptance)
        for arm in self.policy.arms:
            if arm.depth >= MARGIN_TOKENS // 2:
                raise InputError(
                    "policy arm", str(arm), f"depths below {MARGIN_TOKENS // 2}", "choose a shorter draft"
                )
            if arm.depth:
                self.law.survival(arm)  # raises for an arm that the law does not cover
        self.costs = StepCosts(
            self.coefficients,
            self.policy.off_state,
            config.engine.max_running,
            config.engine.chunk_tokens,
            config.engine.graph_max_requests,
            self.coefficients.eager_s or config.engine.eager_s_per_layer * self.shape.layers,
        )
        self.limits = Limits(config.engine.max_running, self._kv_tokens(), config.engine.prefix_caching)
        self.setup = SchedulerSetup(
            workers=config.workers,
            policy=config.policy,
            cluster=config.cluster,
            step_times=self.costs.step_times(self.policy.arms),
            seed=config.run.seed,
        )

    def _kv_tokens(self) -> float:
        rows = self.trace.rows
        longest = int((rows["prompt_tokens"] + rows["response_tokens"]).max()) + 64
        hardware = self.config.hardware
        return kv_tokens(self.config.engine, self.shape, self.gpu, hardware.tp, self.policy.arms, longest)

    def run(self, recorder: Recorder | None = None, progress: Callable[[int], None] | None = None) -> Cluster:
        """Simulate all steps; `progress(step)` is called after each."""
        config = self.config
        env = simpy.Environment(0.0)  # a float from the start, as in the records that a replay writes
        seeds = np.random.SeedSequence(config.run.seed, spawn_key=(1,)).spawn(config.workers + 1)
        acceptance = Acceptance(self.law, config.acceptance.request_spread)
        engine_kind = ExactEngine if config.run.mode == "exact" else JumpEngine

        def make_worker(index: int, report: Callable[[int, tuple[int, ...]], None]) -> Worker:
            engine: Engine = engine_kind(self.costs, acceptance, np.random.default_rng(seeds[index]))
            scheduler = build_worker(self.setup, index, partial(scheduler_rng, config.run.seed))
            return Worker(env, RecordedWorker(scheduler, recorder), engine, report)

        cluster = Cluster(
            env,
            RecordedCluster(build_cluster(self.setup), recorder),
            make_worker,
            config.workers,
            Drafter(config.drafter),
            PhaseTimes(config.phases, self.shape, self.gpu, config.hardware.gpus),
            self.limits,
            acceptance,
            np.random.default_rng(seeds[-1]),
            show_lengths=config.cluster.dispatch == "longest_first",
        )
        env.process(cluster.run(steps_of(self.trace), progress or (lambda _: None)))
        env.run()
        return cluster

    def run_into(self, folder: Path, label: str, progress: Callable[[int], None] | None = None) -> Summary:
        """Simulate and write the run folder (traces.runfolder); returns its summary."""
        folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / "resolved_config.json", self.config)
        write_json(folder / "scheduler.json", self.setup)
        if self.config.run.records:
            with (folder / "records.jsonl").open("wb") as file:
                cluster = self.run(Recorder(file.write), progress)
        else:
            cluster = self.run(None, progress)
        responses, intervals, steps = cluster.tables()
        summary = self._summary(label, cluster)
        RunFolder(folder).write(summary, responses, intervals, steps)
        return summary

    def _summary(self, label: str, cluster: Cluster) -> Summary:
        config = self.config
        rows = self.trace.rows
        return Summary(
            kind="simulated",
            name=config.run.name,
            policy=label,
            model=config.hardware.model,
            gpu=config.hardware.gpu,
            workers=config.workers,
            gpus_per_worker=config.hardware.tp,
            steps=len(cluster.step_rows),
            wall_s=float(cluster.env.now),
            response_tokens=int(rows["response_tokens"].sum()),
            cost_source=self.cost_source(),
            lengths_source=describe_lengths(self.trace),
            acceptance_source=self.law.source if any(arm.depth for arm in self.policy.arms) else "not used",
            seed=config.run.seed,
            tool_version=version("tlt-sim"),
            warnings=self.warnings(cluster),
        )

    def cost_source(self) -> str:
        """Return one line that says what the step times rest on."""
        if self.calibration is not None:
            return self.calibration.describe()
        hardware = self.config.hardware
        return f"assumed: roofline of {hardware.model} on {hardware.tp} x {hardware.gpu}"

    def warnings(self, cluster: Cluster) -> tuple[str, ...]:
        """Return sentences about everything that lies outside what was measured or published."""
        found = self._calibration_warnings()
        ranges = self.calibration.ranges if self.calibration else None
        if ranges and cluster.largest_draft_batch > ranges.draft_batch[1]:
            found.append(
                f"drafting reaches batches of {cluster.largest_draft_batch}; "
                f"the calibration of drafting ends at {ranges.draft_batch[1]}"
            )
        outside = [str(arm) for arm in self.policy.arms if arm != OFF and self.law.extrapolates(arm)]
        if outside:
            found.append(f"acceptance of {', '.join(outside)} is extrapolated beyond its source")
        engine = self.config.engine
        if engine.graph_max_requests and not self.coefficients.eager_s:
            found.append(
                f"decode without a CUDA graph above {engine.graph_max_requests} requests is assumed to cost "
                f"{engine.eager_s_per_layer * 1e3:g} ms a layer more"
            )
        drafter = self.config.drafter
        if drafter.drift:
            found.append(load_drift(drafter.drift).describe())
        elif drafter.drift_per_update:
            found.append("drafter drift and recovery are assumed")
        if cluster.preemptions:
            found.append(f"the KV cache overflowed: {cluster.preemptions} requests were preempted and redone")
        return tuple(found)

    def _calibration_warnings(self) -> list[str]:
        calibration, hardware = self.calibration, self.config.hardware
        if calibration is None:
            return ["step times are assumed: no calibration of this model and GPU was given"]
        found = []
        if (calibration.model, calibration.tp) != (hardware.model, hardware.tp):
            found.append(
                f"the calibration is of {calibration.model} with TP {calibration.tp}, "
                f"not of {hardware.model} with TP {hardware.tp}"
            )
        if hardware.gpu not in calibration.device:
            found.append(f"the calibration is of {calibration.device}, not of {hardware.gpu}")
        ranges = calibration.ranges
        batch = -(-len(self.trace.rows) // len(self.trace.rows["step"].unique()) // self.config.workers)
        batch = min(batch, self.config.engine.max_running)
        if batch > ranges.batch[1]:
            found.append(f"batches reach {batch}; the calibration ends at {ranges.batch[1]}")
        longest = int((self.trace.rows["prompt_tokens"] + self.trace.rows["response_tokens"]).max())
        if longest > ranges.context_tokens[1] * 1.01:
            found.append(
                f"contexts reach {longest:,} tokens; the calibration ends at {ranges.context_tokens[1]:,.0f} "
                "and is extended along a straight line"
            )
        depths = [arm.depth for arm in self.policy.arms if arm.depth]
        if depths and not (ranges.depth[0] <= min(depths) and max(depths) <= ranges.depth[1]):
            found.append(f"draft depths {min(depths)}-{max(depths)} leave the calibrated {ranges.depth}")
        return found
