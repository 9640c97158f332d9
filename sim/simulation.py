"""Builds a cluster from a configuration, runs it, and writes the run folder."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path

import msgspec
import numpy as np
import pandas as pd
import simpy

from tlt.sim.config import AcceptanceConfig, Config
from tlt.sim.kv_cache import kv_tokens
from tlt.sim.model.acceptance import Acceptance, AcceptanceLaw, Geometric, PerPosition, PublishedTree
from tlt.sim.model.cluster import Cluster
from tlt.sim.model.drift import load_drift
from tlt.sim.model.exact_engine import ExactEngine
from tlt.sim.model.jump_engine import Engine, JumpEngine
from tlt.sim.model.phases import phases_of
from tlt.sim.model.running_batch import MARGIN_TOKENS, Limits
from tlt.sim.model.suffix_drafts import HistoryCosts, HistoryLaw, drafter_of, reusing
from tlt.sim.model.worker import Listener, Worker
from tlt.sim.steptimes.calibration import Calibration, load
from tlt.sim.steptimes.gpus import GPUS
from tlt.sim.steptimes.law import Coefficients
from tlt.sim.steptimes.roofline import roofline
from tlt.sim.steptimes.tables import StepCosts
from tlt.sim.workload import describe_lengths, steps_of
from tlt.traces.common.models import MODELS
from tlt.traces.common.seeds import CLUSTER, scheduler_rng, sequence
from tlt.traces.lengths.schema import Trace
from tlt.traces.runs.runfolder import RunFolder, ScheduleFacts, Summary, write_json
from tltsched.draft_config import OFF
from tltsched.errors import InputError, look_up
from tltsched.event_log import (
    RecordedCluster,
    RecordedWorker,
    Recorder,
    SchedulerSetup,
    build_cluster,
    build_worker,
)
from tltsched.policies import PolicySpec
from tltsched.policies.base import Policy
from tltsched.schedules import schedule_name
from tltsched.schedules.bounded_async import BoundedAsyncConfig
from tltsched.schedules.cluster_view import Capacity
from tltsched.schedules.synchronous import SynchronousConfig
from tltsched.step_times import AnyTimes


def probe(spec: PolicySpec) -> Policy:
    """Return a policy that is asked what it is, not what to do."""
    return spec.build(random.Random(0), AnyTimes())  # noqa: S311 -- simulation, not security


def law_of(config: AcceptanceConfig) -> AcceptanceLaw:
    """Return the law that the settings describe."""
    if config.kind == "published_tree":
        return PublishedTree()
    source = f"measured: {config.measured}" if config.measured else None
    law = Geometric(config.rate) if config.kind == "geometric" else PerPosition(config.survival_by_position)
    return msgspec.structs.replace(law, source=source) if source else law


def step_times_of(config: Config) -> tuple[Calibration | None, Coefficients]:
    """Return the calibration that the settings name (None: a roofline) and its law; raises InputError."""
    shape = look_up(MODELS, "hardware.model", config.hardware.model)
    gpu = look_up(GPUS, "hardware.gpu", config.hardware.gpu)
    if config.cost.source == "roofline":
        return None, roofline(shape, gpu, config.hardware.tp, config.cost.roofline).times(config.cost.scale)
    calibration = load(config.cost.source)
    return calibration, calibration.coefficients.times(config.cost.scale)


class Simulation:
    """One policy on one workload; `run` may be called once."""

    def __init__(self, config: Config, trace: Trace, coefficients: Coefficients | None = None) -> None:
        """`coefficients` replaces the fitted ones, to see what their uncertainty does."""
        assert not isinstance(config.policy, str), "resolve() turns names into settings"
        self.config = config
        self.trace = trace
        self.shape = look_up(MODELS, "hardware.model", config.hardware.model)
        self.gpu = look_up(GPUS, "hardware.gpu", config.hardware.gpu)
        self.calibration, fitted = step_times_of(config)
        self.coefficients = coefficients or fitted
        steps = int(trace.rows["step"].nunique())
        for phase, seconds in config.phases.by_step_s.items():
            if len(seconds) < steps:
                raise InputError(
                    f"phases.by_step_s.{phase}", f"{len(seconds)} steps", f"the {steps} that are simulated",
                    "give the seconds of every step",
                )  # fmt: skip
        self.policy = probe(config.policy)
        history = config.drafter.history if config.drafter.kind == "history" else None
        self.law: AcceptanceLaw = HistoryLaw(history) if history else law_of(config.acceptance)
        for draft_config in self.policy.draft_configs:
            if draft_config.depth >= MARGIN_TOKENS // 2:
                raise InputError(
                    "draft_config", str(draft_config), f"depths below {MARGIN_TOKENS // 2}",
                    "choose a shorter draft",
                )  # fmt: skip
            if draft_config.depth:
                self.law.survival(draft_config)  # raises for one that the law does not cover
        self.costs = StepCosts(
            self.coefficients,
            self.policy.when_off,
            config.engine.max_running,
            config.engine.chunk_tokens,
            config.engine.graph_max_requests,
            self.coefficients.eager_s or config.engine.eager_s_per_layer * self.shape.layers,
        )
        self.limits = Limits(config.engine.max_running, self._kv_tokens(), config.engine.prefix_caching)
        if history:
            self.costs = HistoryCosts(self.costs, history)
            self.limits = reusing(self.limits, history)
        spec = config.cluster.schedule_spec()
        self.trainers = spec.trainers(config.workers) if isinstance(spec, BoundedAsyncConfig) else 0
        self.setup = SchedulerSetup(
            workers=config.workers - self.trainers,
            policy=config.policy,
            cluster=config.cluster,
            step_times=self.costs.step_times(self.policy.draft_configs),
            capacity=Capacity(max_running=self.limits.max_running, kv_tokens=self.limits.kv_tokens),
            seed=config.run.seed,
        )

    def _training_gpus(self) -> int:
        """Return the GPUs that take part in the phases after the rollout."""
        hardware = self.config.hardware
        return self.trainers * hardware.tp or hardware.gpus

    def _kv_tokens(self) -> float:
        rows = self.trace.rows
        longest = int((rows["prompt_tokens"] + rows["response_tokens"]).max()) + 64
        hardware = self.config.hardware
        return kv_tokens(
            self.config.engine, self.shape, self.gpu, hardware.tp, self.policy.draft_configs, longest
        )

    def run(self, recorder: Recorder | None = None, progress: Callable[[int], None] | None = None) -> Cluster:
        """Simulate all steps; `progress(step)` is called after each."""
        config = self.config
        env = simpy.Environment(0.0)  # a float from the start, as in the records that a replay writes
        seeds = sequence(config.run.seed, CLUSTER).spawn(config.workers + 2)
        acceptance = Acceptance(self.law, config.acceptance.request_spread)
        engine_kind = ExactEngine if config.run.mode == "exact" else JumpEngine

        watch = config.cluster.schedule_spec().watches

        def make_worker(index: int, listener: Listener) -> Worker:
            engine: Engine = engine_kind(self.costs, acceptance, np.random.default_rng(seeds[index]))
            scheduler = build_worker(self.setup, index, partial(scheduler_rng, config.run.seed))
            worker = RecordedWorker(scheduler, recorder)
            return Worker(env, worker, engine, self.limits, listener, watch)

        cluster = Cluster(
            env,
            RecordedCluster(build_cluster(self.setup), recorder),
            make_worker,
            self.setup.workers,
            self.trainers,
            drafter_of(config.drafter),
            phases_of(config.phases, self.shape, self.gpu, self._training_gpus()),
            acceptance,
            np.random.default_rng(seeds[-2]),
            np.random.default_rng(seeds[-1]),
        )
        env.run(env.process(cluster.run(steps_of(self.trace), progress or (lambda _: None))))
        return cluster

    def run_into(self, folder: Path, label: str, progress: Callable[[int], None] | None = None) -> Summary:
        """Simulate and write the run folder (tlt.traces.runs.runfolder); returns its summary."""
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
        self._write_schedule(RunFolder(folder), cluster)
        return summary

    def _write_schedule(self, folder: RunFolder, cluster: Cluster) -> None:
        """Write what the schedule did beside the time, unless it is the plain synchronous one."""
        spec = cluster.spec
        if isinstance(spec, SynchronousConfig) and not cluster.knows_lengths:
            for stale in ("schedule.json", "schedule.parquet"):  # of an earlier run into the same folder
                (folder.path / stale).unlink(missing_ok=True)
            return
        facts = ScheduleFacts(
            name=schedule_name(spec),
            keeps_order=spec.keeps_order,
            on_policy=spec.on_policy,
            clairvoyant=cluster.knows_lengths,
        )
        folder.write_schedule(facts, pd.DataFrame(cluster.log.schedule_rows))

    def _summary(self, label: str, cluster: Cluster) -> Summary:
        config = self.config
        return Summary(
            kind="simulated",
            name=config.run.name,
            policy=label,
            model=config.hardware.model,
            gpu=config.hardware.gpu,
            workers=config.workers,
            gpus_per_worker=config.hardware.tp,
            steps=len(cluster.log.step_rows),
            wall_s=float(cluster.env.now),
            response_tokens=sum(int(row["response_tokens"]) for row in cluster.log.schedule_rows),
            cost_source=self.cost_source(),
            lengths_source=describe_lengths(self.trace),
            acceptance_source=self.law.source
            if any(draft_config.depth for draft_config in self.policy.draft_configs)
            else "not used",
            seed=config.run.seed,
            tool_version=version("tlt-sim"),
            warnings=self.warnings(cluster),
        )

    def cost_source(self) -> str:
        """Return one line that says what the step times rest on."""
        hardware, scale = self.config.hardware, self.config.cost.scale
        scaled = "" if scale == 1 else f"; all step times x {scale:.4g}, fitted to a log"
        if self.calibration is not None:
            return self.calibration.describe() + scaled
        return f"assumed: roofline of {hardware.model} on {hardware.tp} x {hardware.gpu}{scaled}"

    def warnings(self, cluster: Cluster) -> tuple[str, ...]:
        """Return sentences about everything that lies outside what was measured or published."""
        found = self._calibration_warnings()
        ranges = self.calibration.ranges if self.calibration else None
        if ranges and cluster.log.largest_draft_batch > ranges.draft_batch[1]:
            found.append(
                f"drafting reaches batches of {cluster.log.largest_draft_batch}; "
                f"the calibration of drafting ends at {ranges.draft_batch[1]}"
            )
        outside = [
            str(draft_config)
            for draft_config in self.policy.draft_configs
            if draft_config != OFF and self.law.extrapolates(draft_config)
        ]
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
        if cluster.stream.repeated:
            times = cluster.stream.repeated
            found.append(f"the schedule used up the prompts of the trace and began it anew {times} times")
        if cluster.log.preemptions:
            found.append(
                f"the KV cache overflowed: {cluster.log.preemptions} requests were preempted and redone"
            )
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
        depths = [draft_config.depth for draft_config in self.policy.draft_configs if draft_config.depth]
        if depths and not (ranges.depth[0] <= min(depths) and max(depths) <= ranges.depth[1]):
            found.append(f"draft depths {min(depths)}-{max(depths)} leave the calibrated {ranges.depth}")
        return found
