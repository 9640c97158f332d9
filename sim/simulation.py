"""One policy on one workload: everything that is checked and fixed before a cluster is simulated."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Self

import msgspec
import numpy as np

from tlt.sim.acceptance.laws import AcceptanceLaw, Geometric, PerPosition, PublishedTree
from tlt.sim.acceptance.process import Acceptance
from tlt.sim.config import AcceptanceConfig, Config
from tlt.sim.defaults import ROOFLINE, TREES, probe
from tlt.sim.kv_cache import kv_tokens
from tlt.sim.model.assembly import Assembly
from tlt.sim.model.cluster import Cluster
from tlt.sim.model.draft_counts import DraftCounts
from tlt.sim.model.engines.choice import jump_engine
from tlt.sim.model.engines.exact_engine import ExactEngine
from tlt.sim.model.engines.jump_engine import JumpEngine
from tlt.sim.model.engines.running_batch import Limits, most_emitted_of
from tlt.sim.model.phases import given_on_trainers, phases_of
from tlt.sim.model.requests import StepRequests
from tlt.sim.model.sessions.turns import SessionWork
from tlt.sim.model.suffix_drafts import HistoryCosts, HistoryLaw, reusing
from tlt.sim.steptimes.calibration import Calibration, load
from tlt.sim.steptimes.drafters import Drafter as OtherDrafter
from tlt.sim.steptimes.drafters import with_drafter
from tlt.sim.steptimes.errors import CostError, cost_error
from tlt.sim.steptimes.known import pinned
from tlt.sim.steptimes.law import Coefficients
from tlt.sim.steptimes.roofline import drafting_name, roofline
from tlt.sim.steptimes.tables import StepCosts
from tlt.sim.training_memory import training_memory
from tlt.sim.workload import SessionTrace, steps_of
from tlt.traces.catalogue.gpus import gpu_spec
from tlt.traces.catalogue.models import model_shape
from tlt.traces.catalogue.shape import ModelShape
from tlt.traces.lengths.schema import Trace
from tltsched.errors import InputError
from tltsched.event_log import Recorder, SchedulerSetup
from tltsched.schedules.bounded_async import BoundedAsyncConfig
from tltsched.schedules.cluster_view import Capacity

# Drafters that read hidden states of the target: vLLM computes the last block of a cached prefix again.
READS_HIDDEN = ("head", "mtp")


def law_of(config: AcceptanceConfig) -> AcceptanceLaw:
    """Return the law that the settings describe."""
    if config.kind == "published_tree":
        return PublishedTree()
    source = f"measured: {config.measured}" if config.measured else None
    law = Geometric(config.rate) if config.kind == "geometric" else PerPosition(config.survival_by_position)
    return msgspec.structs.replace(law, source=source) if source else law


def calibration_of(config: Config) -> Calibration | None:
    """Read the calibration that the settings name; None: a roofline. Raises InputError."""
    return None if config.cost.source == ROOFLINE else load(config.cost.source)


def shape_in(config: Config) -> ModelShape:
    """Return the model's shape, its cache stored as the settings say; raises InputError: unknown."""
    shape = model_shape(config.hardware.model, "hardware.model")
    bits = {"model": shape.kv_bits, "bf16": 16.0, "fp8": 8.0}[config.engine.kv_dtype]
    return msgspec.structs.replace(shape, kv_bits=bits)


def drafts_trees(config: Config) -> bool:
    """Return whether acceptance is of trees, as TLT's figures are."""
    return config.acceptance.kind == TREES


def coefficients_of(config: Config, calibration: Calibration | None) -> Coefficients:
    """Return the law of step times; raises InputError for an unknown model or GPU."""
    shape = shape_in(config)
    gpu = gpu_spec(config.hardware.gpu, "hardware.gpu")
    if calibration is None:
        fitted = roofline(shape, gpu, config.hardware.parallel, config.cost.roofline, drafts_trees(config))
    else:
        fitted = calibration.coefficients
    other = other_drafter(config)
    if other:
        fitted = with_drafter(fitted, other, shape, gpu, config.hardware.tp, config.cost.roofline)
    known = config.cost.known.steps()
    return (pinned(fitted, known) if known else fitted).times(config.cost.scale)


def other_drafter(config: Config) -> OtherDrafter | None:
    """Return the drafter whose cost replaces that of a head; None: a head drafts, or no model does."""
    drafter = config.drafter
    if drafter.kind in ("mtp", "draft_model", "block"):
        return OtherDrafter(kind=drafter.kind, model=drafter.model, layers=drafter.block_layers)
    return None


def mixes_prefill(config: Config, calibration: Calibration | None) -> bool:
    """Return whether the engine decodes while it prefills: as set, else as the calibrated one does."""
    if config.engine.mixed_prefill is not None:
        return config.engine.mixed_prefill
    if calibration is None:
        return not drafting_name(config.cost.roofline, drafts_trees(config)).startswith("sglang")
    return calibration.mixes_prefill


class Simulation:
    """One policy on one workload, checked when it is made. `run` changes nothing in it.

    A run under other step times, of other steps or of a changed configuration is derived from it
    (`with_coefficients`, `scaled`, `on`, `changed`), so that no file is read and no length checked twice.
    """

    def __init__(self, config: Config, trace: Trace, coefficients: Coefficients | None = None) -> None:
        """Check a configuration against the lengths; `coefficients` replaces the fitted ones.

        Raises InputError for what does not fit together.
        """
        self.trace = trace
        self.sessions = trace.sessions if isinstance(trace, SessionTrace) else None
        self.shape = shape_in(config)
        config.hardware.parallel.check(self.shape)
        self.gpu = gpu_spec(config.hardware.gpu, "hardware.gpu")
        other = config.hardware.training_gpu
        self.training_gpu = gpu_spec(other, "hardware.training_gpu") if other else self.gpu
        self.calibration = calibration_of(config)
        steps = int(trace.rows["step"].nunique())
        for phase, seconds in config.phases.by_step_s.items():
            if len(seconds) < steps:
                raise InputError(
                    f"phases.by_step_s.{phase}", f"{len(seconds)} steps", f"the {steps} that are simulated",
                    "give the seconds of every step",
                )  # fmt: skip
        self._set(config, coefficients or coefficients_of(config, self.calibration))

    def _set(self, config: Config, coefficients: Coefficients) -> None:
        """Work out everything that follows from a configuration, its files and its lengths."""
        assert not isinstance(config.policy, str), "resolve() turns names into settings"
        self.config, self.coefficients = config, coefficients
        self.policy = probe(config.policy)
        history = config.drafter.model_free
        self.law: AcceptanceLaw = law_of(config.acceptance)
        if history:
            own = config.drafter.kind == "ngram"
            self.law = HistoryLaw(history, "the request's own text" if own else "earlier responses")
        self._check_drafts()
        self.acceptance = self._acceptance()
        self.costs = StepCosts(
            coefficients,
            self.policy.when_off,
            config.engine.max_running,
            config.engine.chunk_tokens,
            config.engine.graph_max_requests,
            coefficients.eager_s or config.engine.eager_s_per_layer * self.shape.layers,
            mixes_prefill(config, self.calibration),
            config.engine.eager_s_per_draft_pass or 0.0,
        )
        self.limits = Limits(
            config.engine.max_running, self._kv_tokens(), config.engine.prefix_caching,
            most_emitted_of(self.policy.draft_configs), keeps_waiting=config.engine.tool_wait_kv == "keep",
            block_tokens=config.engine.block_tokens,
            drops_block=self.drafts and config.drafter.kind in READS_HIDDEN,
        )  # fmt: skip
        if history:
            self.costs = HistoryCosts(self.costs, history)
            self.limits = reusing(self.limits, history)
        spec = config.cluster.schedule_spec()
        self.trainers = spec.trainers(config.workers)
        self._check_trainers()
        self.setup = SchedulerSetup(
            workers=config.workers - (0 if self.lends else self.trainers),
            policy=config.policy,
            cluster=config.cluster,
            step_times=self.costs.step_times(self.policy.draft_configs),
            capacity=Capacity(max_running=self.limits.max_running, kv_tokens=self.limits.kv_tokens),
            seed=config.run.seed,
        )

    def _acceptance(self) -> Acceptance:
        """Return the process of acceptance on all responses of the trace."""
        config = self.config.acceptance
        known: Acceptance | None = getattr(self, "acceptance", None)
        if known and known.is_of(self.law, config.population, config.survival_of):
            return known
        lengths = self.trace.rows["response_tokens"].to_numpy(np.int64)
        return Acceptance(self.law, config.population, lengths, config.survival_of)

    def _check_drafts(self) -> None:
        for draft_config in self.policy.draft_configs:
            if draft_config.depth:
                self.law.survival(draft_config)  # raises for one that the law does not cover

    @property
    def longest_tokens(self) -> int:
        """The longest context that has to fit: of a response that reaches its cap, however short they are."""
        if self.sessions is not None:
            return int(self.sessions.context_tokens.max())
        return int(self.trace.rows["prompt_tokens"].max()) + self.config.workload.max_response_tokens

    def _kv_tokens(self) -> float:
        config = self.config
        return kv_tokens(
            config.engine, self.shape, self.gpu, config.hardware.parallel, self.policy.draft_configs,
            self.longest_tokens,
        )  # fmt: skip

    def _check_trainers(self) -> None:
        """Refuse GPUs of another kind where all train, and an update that does not fit."""
        if self.config.hardware.training_gpu and not self.trainers:
            raise InputError(
                "hardware.training_gpu", self.config.hardware.training_gpu,
                "empty, unless cluster.schedule has GPUs that do nothing but train",
                "leave it out, or take cluster.schedule = bounded_async",
            )  # fmt: skip
        self.training_memory = training_memory(
            self.config, self.shape, self.training_gpu, self.training_gpus, self.longest_tokens
        )

    def check_graphs(self, cluster: Cluster) -> None:
        """Raise InputError if drafts were made without CUDA graphs and nobody says what that costs."""
        engine, batch = self.config.engine, cluster.log.largest_draft_batch
        known = engine.eager_s_per_draft_pass is not None or self.config.drafter.model_free is not None
        if known or not engine.graph_max_requests or batch <= engine.graph_max_requests:
            return
        raise InputError(
            "engine.eager_s_per_draft_pass", "nothing", "seconds, 0 or more",
            f"drafts reach batches of {batch}, above CUDA graphs (engine.graph_max_requests = "
            f"{engine.graph_max_requests}): say what a pass of the drafter takes more without one, often "
            "milliseconds, or draft at fewer requests",
        )  # fmt: skip

    @property
    def training_gpus(self) -> int:
        """GPUs that train the policy: all of them, unless some do nothing else."""
        hardware = self.config.hardware
        return self.trainers * hardware.parallel.gpus or hardware.gpus

    @property
    def lends(self) -> bool:
        """Whether the GPUs that train generate too while they wait."""
        spec = self.config.cluster.schedule_spec()
        return isinstance(spec, BoundedAsyncConfig) and spec.lend

    def unscaled(self) -> Self | None:
        """Return it with given seconds of training that do not grow where fewer GPUs train.

        None where nothing is given, all train, or they do not grow anyway.
        """
        phases = self.config.phases
        whole = self.training_gpus == self.config.hardware.gpus
        if whole or not phases.trainer_scaling or not given_on_trainers(phases):
            return None
        phases = msgspec.structs.replace(phases, trainer_scaling=0.0)
        return self.changed(msgspec.structs.replace(self.config, phases=phases))

    @property
    def drafts(self) -> bool:
        """Whether the policy ever drafts."""
        return any(draft_config.depth for draft_config in self.policy.draft_configs)

    def cost_error(self) -> CostError:
        """Return how far the step times may be off."""
        known = self.config.cost.known.given
        return cost_error(self.calibration, known, other_drafter(self.config) is not None)

    def with_coefficients(self, coefficients: Coefficients) -> Self:
        """Return the same policy and workload under other step times."""
        return self._derived(self.config, coefficients)

    def scaled(self, factor: float) -> Self:
        """Return it with all step times, those of the configuration, times a factor."""
        cost = msgspec.structs.replace(self.config.cost, scale=factor * self.config.cost.scale)
        config = msgspec.structs.replace(self.config, cost=cost)
        return self._derived(config, coefficients_of(config, self.calibration))

    def changed(self, config: Config) -> Self:
        """Return it under a configuration with the same calibration and workload, on as many GPUs or others.

        Raises InputError where its schedule needs more workers.
        """
        hardware = msgspec.structs.replace(config.hardware, gpus=self.config.hardware.gpus)
        same = (self.config.hardware, self.config.cost, self.config.workload)
        assert (hardware, config.cost, config.workload) == same, "files and lengths are not read again"
        return self._derived(config, self.coefficients)

    def on(self, trace: Trace) -> Self:
        """Return it on some of its steps, or on others that are no more and no longer."""
        other = copy.copy(self)
        other.trace = trace
        return other

    def without_lengths(self) -> Self:
        """Return it with one row of lengths: they travel on their own, and `on` gives it all of them."""
        return self.on(Trace(self.trace.rows.iloc[:1], self.trace.origin))

    def _derived(self, config: Config, coefficients: Coefficients) -> Self:
        other = copy.copy(self)
        other._set(config, coefficients)
        return other

    def assembly(self) -> Assembly:
        """Return the cluster that is simulated."""
        config = self.config
        return Assembly(
            setup=self.setup,
            costs=self.costs,
            limits=self.limits,
            acceptance=self.acceptance,
            drafter=config.drafter,
            phases=phases_of(
                config.phases, self.shape, self.training_gpu, config.hardware.gpus, self.training_gpus
            ),
            engine=self._engine(),
            trainers=0 if self.lends else self.trainers,
            lent=self.trainers if self.lends else 0,
            sessions=None if self.sessions is None else SessionWork(self.sessions, config.tools),
        )

    def _engine(self) -> type[ExactEngine] | type[JumpEngine]:
        """Return the engine of the mode."""
        return ExactEngine if self.config.run.mode == "exact" else jump_engine(len(self.trace.rows))

    def step_requests(self) -> list[StepRequests]:
        """Return the responses, or sessions, step by step."""
        return steps_of(self.trace, self.sessions)

    def run(
        self,
        recorder: Recorder | None = None,
        progress: Callable[[int], None] | None = None,
        counts: DraftCounts | None = None,
    ) -> Cluster:
        """Simulate all steps; `progress(step)` is called after each. `counts` takes drafts by request."""
        cluster = self.assembly().run(self.step_requests(), recorder, progress or (lambda _: None), counts)
        self.check_graphs(cluster)
        return cluster
