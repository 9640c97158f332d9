"""The configuration of a simulation: one TOML file, and `--set section.field=value` on top.

`resolve` checks it, `fields` lists every field with its default and meaning. What a name stands for (a preset
policy and the engine it implies) is resolved here, and the resolved form is written beside the results.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import force_setattr

from tlt.sim.acceptance.fitted import with_law
from tlt.sim.acceptance.laws import require_survivals
from tlt.sim.acceptance.population import Population
from tlt.sim.acceptance.prior import PRIOR
from tlt.sim.acceptance.process import SurvivalOf
from tlt.sim.acceptance_file import with_acceptance
from tlt.sim.defaults import AUTO, TREES, source_of, with_kind
from tlt.sim.drift import with_drift
from tlt.sim.model.drafter import DrafterConfig
from tlt.sim.model.phases import PHASES, PhaseConfig
from tlt.sim.model.sessions.turns import ToolConfig
from tlt.sim.steptimes.known import KnownConfig
from tlt.sim.steptimes.parallel import Parallel
from tlt.sim.steptimes.roofline import Assumptions
from tlt.traces.catalogue.gpus import canonical_gpu
from tlt.traces.catalogue.models import canonical
from tlt.traces.common.settings import Section, convert, merge
from tltsched.cluster_config import ClusterConfig
from tltsched.errors import InputError
from tltsched.policies import PolicySpec, parse_policy
from tltsched.schedules import PRESETS
from tltsched.spot import SpotConfig
from tltsched.written.policy_name import PolicyName

Mode = Literal["jump", "exact"]


MOST_RESPONSES = 20_000_000  # of a simulation: each takes some 100 bytes of memory for all of it


class HardwareConfig(Section, frozen=True, kw_only=True):
    """GPUs, and the model whose policy is trained on them."""

    gpus: Annotated[int, Meta(ge=1, description="GPUs of the cluster; a multiple of tp")] = 64
    tp: Annotated[int, Meta(ge=1, description="GPUs of one rollout worker (tensor parallel)")] = 4
    gpu: Annotated[
        str, Meta(description="data sheet by name (`tlt sim gpus`), or the path of a file of its figures")
    ] = "H100"
    model: Annotated[
        str, Meta(description="shape by name (`tlt sim models`), or the path of a config.json or its folder")
    ] = "Qwen2.5-32B"

    pp: Annotated[int, Meta(ge=1, description="stages of a pipeline of layers in one rollout worker")] = 1
    attention_dp: Annotated[
        int,
        Meta(ge=1, description="groups of tp GPUs in one worker that attend to requests of their own and "
             "share the experts (data-parallel attention)"),
    ] = 1  # fmt: skip
    ep: Annotated[
        int, Meta(ge=1, description="GPUs over which whole experts are spread: 1, or tp x attention_dp")
    ] = 1
    training_gpu: Annotated[
        str, Meta(description="GPUs that train where some do nothing else (bounded_async); empty: as `gpu`")
    ] = ""

    def __post_init__(self) -> None:
        force_setattr(self, "gpu", canonical_gpu(self.gpu))
        force_setattr(self, "training_gpu", canonical_gpu(self.training_gpu))
        force_setattr(self, "model", canonical(self.model))

    @property
    def parallel(self) -> Parallel:
        """Return how one rollout worker is spread over GPUs."""
        return Parallel(tp=self.tp, pp=self.pp, attention_dp=self.attention_dp, ep=self.ep)


class CostConfig(Section, frozen=True, kw_only=True):
    """Where step times come from."""

    source: Annotated[
        str,
        Meta(description="a shipped calibration, the path of a calibration.json, 'roofline' (assumed), or "
             "'auto': the shipped one of this model, GPU, TP and kind of draft, else the roofline"),
    ] = AUTO  # fmt: skip
    known: KnownConfig = KnownConfig()
    roofline: Annotated[Assumptions, Meta(description="efficiencies that a roofline assumes")] = Assumptions()
    scale: Annotated[
        float, Meta(gt=0.0, description="all step times are this many times as long; fitted to a log")
    ] = 1.0


class WorkloadConfig(Section, frozen=True, kw_only=True):
    """What is generated in each RL step."""

    lengths: Annotated[
        str, Meta(description="shipped lengths (r1-client35, r1-client66, r1-all, ...) or a trace file")
    ] = "r1-client35"
    steps: Annotated[int, Meta(ge=1, description="RL steps")] = 8
    prompts_per_step: Annotated[int, Meta(ge=1, description="prompts in a step")] = 128
    samples_per_prompt: Annotated[int, Meta(ge=1, description="responses to each prompt")] = 8
    max_response_tokens: Annotated[int, Meta(ge=1, description="longest response; longer ones are cut")] = (
        32_768
    )
    prompt_tokens: Annotated[int, Meta(ge=0, description="tokens of a prompt where the trace has none")] = 512
    group_correlation: Annotated[
        float, Meta(ge=0.0, lt=1.0, description="modelled: rank correlation of lengths inside a group")
    ] = 0.0
    length_drift_per_step: Annotated[
        float, Meta(description="modelled: lengths are multiplied by exp(this) each step")
    ] = 0.0
    replay_steps: Annotated[
        bool, Meta(description="take steps, groups and order from the trace file instead of sampling it")
    ] = False
    sessions: Annotated[
        str,
        Meta(description="sessions of several turns in place of lengths: a session file, replayed as it was "
             "recorded, or a file of laws to draw from (`tlt trace fit`); empty: single responses"),
    ] = ""  # fmt: skip

    def __post_init__(self) -> None:
        responses = self.steps * self.prompts_per_step * self.samples_per_prompt
        if responses > MOST_RESPONSES:
            raise InputError(
                "workload.steps", f"{self.steps:,} steps of {responses // self.steps:,} responses",
                f"at most {MOST_RESPONSES:,} responses in all", "simulate fewer steps",
            )  # fmt: skip


class AcceptanceConfig(Section, frozen=True, kw_only=True):
    """How many drafts the target accepts."""

    kind: Annotated[
        Literal["published_tree", "per_position", "geometric"],
        Meta(description="per_position, geometric: chains; published_tree: TLT figure 13 (trees), taken "
             "where it is not set and a policy or cost.source is of trees"),
    ] = "per_position"  # fmt: skip
    survival_by_position: Annotated[
        tuple[float, ...], Meta(description="per_position: P(drafts up to position j are all accepted)")
    ] = (0.8, 0.64, 0.5, 0.4, 0.32, 0.25, 0.2, 0.16)
    rate: Annotated[
        float, Meta(ge=0.0, le=1.0, description="geometric: acceptance of each further draft")
    ] = 0.7
    survival_of: Annotated[
        SurvivalOf,
        Meta(description="run: the survivals given are averages over the engine steps of a run, as engines "
             "report them; request: those of the median request, as a fitted law has it"),
    ] = "run"  # fmt: skip
    law: Annotated[
        str,
        Meta(description="a fitted law of acceptance, by name or file (`tlt sim fit-acceptance`): it sets "
             "the survivals and the fields below; empty: they count as they stand"),
    ] = ""  # fmt: skip
    request_spread: Annotated[
        float,
        Meta(ge=0.0, description="assumed unless a law is named: standard deviation between requests of the "
             "log of the exponent on survival; 0: all alike"),
    ] = PRIOR.request_spread  # fmt: skip
    length_correlation: Annotated[
        float,
        Meta(ge=-1.0, le=1.0, description="of that log with the rank of the response's length; above 0: long "
             "responses accept less"),
    ] = PRIOR.length_correlation  # fmt: skip
    group_correlation: Annotated[
        float,
        Meta(ge=0.0, le=1.0, description="of what is left of that log, between responses to a prompt"),
    ] = PRIOR.group_correlation  # fmt: skip
    position_spread: Annotated[
        float,
        Meta(ge=0.0, description="standard deviation of that log from bin to bin (0, 128, 256, 512, ... "
             "tokens) of one response"),
    ] = PRIOR.position_spread  # fmt: skip
    position_slope: Annotated[
        float,
        Meta(description="of that log, by bin up to 1,024 tokens; below 0: acceptance rises on the way"),
    ] = PRIOR.position_slope  # fmt: skip
    start_excess: Annotated[
        float, Meta(description="of that log in the first 128 tokens over what the slope says")
    ] = PRIOR.start_excess  # fmt: skip
    measured: Annotated[
        str, Meta(description="where per_position or geometric acceptance was measured; empty: it is assumed")
    ] = ""
    read_from: Annotated[
        str,
        Meta(
            description="file that states the law, in place of kind: server log or Prometheus text of vLLM "
            "or SGLang, a result of their benchmarks, metrics of a trainer (`tlt trace acceptance` shows it)"
        ),
    ] = ""
    read_drafts: Annotated[
        int, Meta(ge=0, description="drafts of an engine step in read_from; 0: as it states them")
    ] = 0

    def __post_init__(self) -> None:
        require_survivals("acceptance.survival_by_position", self.survival_by_position)

    @property
    def population(self) -> Population:
        """Return how requests differ."""
        return Population(**{name: getattr(self, name) for name in Population.__struct_fields__})

    @property
    def assumes_differences(self) -> bool:
        """Return whether nobody has measured or set how requests differ: the prior stands."""
        return not self.law and self.population == PRIOR


class EngineConfig(Section, frozen=True, kw_only=True):
    """One rollout engine."""

    max_running: Annotated[int, Meta(ge=1, description="largest running batch")] = 256
    memory_fraction: Annotated[
        float, Meta(gt=0.0, le=1.0, description="share of GPU memory that weights, graphs and KV may take")
    ] = 0.9
    kv_dtype: Annotated[
        Literal["model", "bf16", "fp8"],
        Meta(description="how the KV cache is stored; model: as the model's configuration says, else bf16"),
    ] = "model"
    graph_bytes: Annotated[
        Annotated[float, Meta(ge=0.0)] | None,
        Meta(
            description="CUDA graphs per GPU; unset: 7.81 GB for one draft configuration, 10.69 GB for "
            "several (published), 2 GB without drafts (assumed)"
        ),
    ] = None
    chunk_tokens: Annotated[int, Meta(ge=1, description="prefill tokens in one step (assumed 8192)")] = 8192
    prefix_caching: Annotated[
        bool,
        Meta(description="a prompt is prefilled once a worker and group; a session finds what it had"),
    ] = True
    block_tokens: Annotated[
        int, Meta(ge=1, le=4096, description="of the KV cache; prefixes are found in whole blocks (vLLM: 16)")
    ] = 16
    tool_wait_kv: Annotated[
        Literal["keep", "drop"],
        Meta(description="the cache of a session at its tool. keep: until its place is needed, the longest "
             "unused first; drop: freed at once"),
    ] = "keep"  # fmt: skip
    mixed_prefill: Annotated[
        bool | None,
        Meta(
            description="decode goes on in the engine steps that prefill; unset: as the engine of the "
            "calibration, or of cost.roofline.drafting, does by default (vLLM mixes, SGLang does not)"
        ),
    ] = None
    graph_max_requests: Annotated[
        int, Meta(ge=0, description="above it, decode, verify and draft have no CUDA graph; 0: no limit")
    ] = 0
    eager_s_per_layer: Annotated[
        float, Meta(ge=0.0, description="assumed: what a layer costs more without a CUDA graph")
    ] = 0.1e-3
    eager_s_per_draft_pass: Annotated[
        Annotated[float, Meta(ge=0.0)] | None,
        Meta(
            description="seconds that a pass of the drafter takes more without a CUDA graph; unset: not "
            "known, and drafting above graph_max_requests is refused"
        ),
    ] = None


class RunConfig(Section, frozen=True, kw_only=True):
    """The run itself."""

    name: Annotated[str, Meta(description="shown in reports")] = "simulation"
    seed: Annotated[int, Meta(ge=0, description="all draws follow from it")] = 0
    mode: Annotated[
        Mode, Meta(description="jump: closed form between decisions; exact: every engine step")
    ] = "jump"
    records: Annotated[
        bool | None,
        Meta(description="write every event and command to records.jsonl; unset: of runs of up to 20,000 "
             "responses"),
    ] = None  # fmt: skip
    acceptance: Annotated[
        bool, Meta(description="write drafts by request and position to acceptance.parquet")
    ] = True


class Config(Section, frozen=True, kw_only=True):
    """A whole simulation."""

    run: RunConfig = RunConfig()
    hardware: HardwareConfig = HardwareConfig()
    cost: CostConfig = CostConfig()
    workload: WorkloadConfig = WorkloadConfig()
    acceptance: AcceptanceConfig = AcceptanceConfig()
    drafter: DrafterConfig = DrafterConfig()
    engine: EngineConfig = EngineConfig()
    phases: PhaseConfig = PhaseConfig()
    tools: ToolConfig = ToolConfig()
    cluster: ClusterConfig = ClusterConfig()
    policy: Annotated[
        str | PolicySpec,
        Meta(description="a preset name (`tlt sim policies`), static:DRAFT, goodput:DRAFT+DRAFT, or a table "
             "with `kind`"),
    ] = "goodput"  # fmt: skip

    def __post_init__(self) -> None:
        hardware = self.hardware
        if hardware.gpus % hardware.parallel.gpus:
            others = {"pp": hardware.pp, "attention_dp": hardware.attention_dp}
            more = "".join(f" x {name} = {size}" for name, size in others.items() if size > 1)
            raise InputError(
                "hardware.gpus", hardware.gpus, f"a multiple of hardware.tp = {hardware.tp}{more}",
                "change one of them",
            )  # fmt: skip
        if self.drafter.model_free is not None and self.cluster.spot.enabled:
            raise InputError(
                "cluster.spot.enabled", True, f"false with drafter.kind = '{self.drafter.kind}'",
                "there is no head to train: set it to false",
            )  # fmt: skip
        if self.cluster.fallback.enabled:
            raise InputError(
                "cluster.fallback.enabled", True, "false in a simulation",
                "simulate one drafter at a time: drafter.kind head or history",
            )  # fmt: skip
        if self.workload.sessions:
            self.cluster.require_sessions()
        unknown = [phase for phase in self.cluster.phases if phase not in PHASES]
        if unknown:
            raise InputError("cluster.phases", unknown, ", ".join(PHASES), "leave out what is not listed")

    @property
    def workers(self) -> int:
        """Rollout workers of the cluster."""
        return self.hardware.gpus // self.hardware.parallel.gpus


# What a named policy implies for the engine around it, unless the user sets the field.
# tlt_released: CUDA graphs up to 32 requests, 512 running at most, drafter training off (mit-han-lab/fastrl).
IMPLIED: dict[str, dict[str, Any]] = {
    "tlt": {"cluster": {"spot": {"enabled": True}}},
    "tlt_released": {"engine": {"graph_max_requests": 32, "max_running": 512}},
}


def _overlaps(settings: dict[str, Any]) -> bool:
    """Return whether the schedule that the settings name goes on while the policy is trained."""
    named = settings.get("cluster", {}).get("schedule", "synchronous")
    name = (
        str(named.get("kind")) if isinstance(named, dict) else str(named).partition("(")[0].partition(":")[0]
    )
    return name in PRESETS and PRESETS[name].overlaps


def resolve(settings: dict[str, Any], policy: str | None = None) -> Config:
    """Return the checked configuration; `policy` replaces the policy that the settings name.

    It may name the schedule as well: POLICY@SCHEDULE.

    Raises InputError that names the field.
    """
    if policy is not None:
        name = PolicyName.parse(policy)
        settings = settings | {"policy": str(name.on(None))}
        settings = merge(settings, {"cluster": {"schedule": name.schedule}}) if name.schedule else settings
    named = settings.get("policy", Config().policy)
    implied = IMPLIED.get(named, {}) if isinstance(named, str) else {}
    if _overlaps(settings):  # nobody falls idle, so the drafter is not trained
        implied = {section: fields for section, fields in implied.items() if section != "cluster"}
    filled = with_drift(with_law(with_acceptance(with_kind(merge(implied, settings), [named]))))
    config = convert(filled, Config, "tlt sim fields")
    spec = parse_policy(config.policy) if isinstance(config.policy, str) else config.policy
    spot = config.cluster.spot if spec.needs_drafter else SpotConfig()  # a baseline has nothing to train
    cluster = msgspec.structs.replace(config.cluster, schedule=config.cluster.schedule_spec(), spot=spot)
    return msgspec.structs.replace(config, policy=spec, cluster=cluster, cost=_sourced(config))


def _sourced(config: Config) -> CostConfig:
    """Return where step times come from, `auto` replaced by what it stands for."""
    hardware, trees = config.hardware, config.acceptance.kind == TREES
    spread = hardware.parallel != Parallel(tp=hardware.tp)
    source = source_of(
        config.cost.source, hardware.model, hardware.gpu, hardware.tp, trees=trees, spread=spread
    )
    return msgspec.structs.replace(config.cost, source=source)
