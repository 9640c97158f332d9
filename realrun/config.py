"""Settings of the real backend. Imports neither torch nor vllm, so that any machine can check a file.

One TOML file and `--set section.field=value`, as for the simulator; the scheduler's policies are the same.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta

from tlt.traces.common.settings import Section
from tltsched.errors import InputError

Count = Annotated[int, Meta(ge=1)]
Dtype = Literal["bfloat16", "float32"]
DrafterKind = Literal["eagle3", "mtp", "ngram", "suffix", "draft_model"]
Graphs = Literal["every_k", "stock"]
Quantization = Literal["none", "fp8_per_tensor", "fp8_per_channel"]


class ModelConfig(Section, frozen=True, kw_only=True):
    """The model that generates."""

    folder: Annotated[str, Meta(description="a prepared model folder (`tlt real model`)")] = ""
    name: Annotated[str, Meta(description="its shape: a name, or the path of a config.json")] = "SmolLM2-135M"
    dtype: Annotated[Dtype, Meta(description="number format of weights")] = "bfloat16"
    quantization: Annotated[
        Quantization,
        Meta(description="how the engine quantises the weights while it loads them, by vLLM's own names"),
    ] = "none"
    random_weights: Annotated[bool, Meta(description="engine fills weights at random (timing only)")] = False


class DrafterConfig(Section, frozen=True, kw_only=True):
    """What drafts."""

    kind: Annotated[DrafterKind, Meta(description="drafter of the speculating engine")] = "eagle3"
    folder: Annotated[str, Meta(description="drafter weights (eagle3, draft_model)")] = ""
    random_weights: Annotated[bool, Meta(description="engine fills the drafter's weights at random")] = False
    ks: Annotated[
        tuple[int, ...], Meta(description="chain lengths that may be chosen, 0 included; each is warmed up")
    ] = (0, 1, 2, 4)
    synthetic_survival: Annotated[
        tuple[float, ...],
        Meta(description="accept by position at these rates instead of the drafter's own; empty: its own"),
    ] = ()


class EngineConfig(Section, frozen=True, kw_only=True):
    """One engine."""

    device: Annotated[Literal["cpu", "cuda"], Meta(description="where it runs")] = "cpu"
    max_running: Annotated[Count, Meta(description="largest running batch")] = 32
    max_context_tokens: Annotated[Count, Meta(description="prompt and response of one request")] = 1024
    threads: Annotated[Count, Meta(description="CPU threads of one worker")] = 1
    kv_gigabytes: Annotated[float, Meta(gt=0, description="KV cache of one engine (CPU)")] = 1.0
    memory_fraction: Annotated[float, Meta(gt=0, le=1, description="GPU memory of one engine")] = 0.45
    kv_tokens: Annotated[
        int, Meta(ge=0, description="tokens that the KV cache holds; 0: as many as its memory takes")
    ] = 0
    prefix_caching: Annotated[
        bool, Meta(description="keep the cache of prompts that come again; a server does by default")
    ] = False
    graphs: Annotated[
        Graphs,
        Meta(
            description="CUDA graphs. every_k: full ones of every batch and K, none while a prompt is "
            "prefilled; stock: as `vllm serve` with one K sets itself up, each engine in a process of its own"
        ),
    ] = "every_k"
    graph_batches: Annotated[
        tuple[Count, ...],
        Meta(description="batches whose graphs are captured with every_k; empty: 21 up to 224"),
    ] = ()
    eager: Annotated[bool, Meta(description="no CUDA graphs, no compilation")] = False
    temperature: Annotated[float, Meta(ge=0, description="sampling temperature; 0: greedy")] = 1.0


class TasksConfig(Section, frozen=True, kw_only=True):
    """What the model is asked and how answers are scored: a module, a file or random tokens."""

    module: Annotated[
        str,
        Meta(description="own problems: a Python file, or the name of a module, that has make_problems"),
    ] = ""
    settings: Annotated[
        dict[str, Any], Meta(description="what tasks.module is given as setup.settings, and checks itself")
    ] = {}  # noqa: RUF012 -- msgspec copies it
    prompts: Annotated[
        str, Meta(description="own prompts: JSONL with question, answer and scorer (number or exact)")
    ] = ""
    random_prompt_tokens: Annotated[
        int,
        Meta(ge=0, description="prompts of random tokens of this length (a model without tokenizer); 0: off"),
    ] = 0

    @property
    def given(self) -> tuple[str, ...]:
        """The settings that say where problems come from; at most one."""
        kinds = ("module", "prompts", "random_prompt_tokens")
        return tuple(f"tasks.{name}" for name in kinds if getattr(self, name))

    def __post_init__(self) -> None:
        if len(self.given) > 1:
            raise InputError("tasks", " and ".join(self.given), "one of them", "remove the others")
        if self.settings and not self.module:
            allowed = "none without tasks.module"
            raise InputError("tasks.settings", self.settings, allowed, "set tasks.module as well")


class WorkloadConfig(Section, frozen=True, kw_only=True):
    """What is generated."""

    lengths: Annotated[str, Meta(description="shipped lengths or a trace file")] = "r1-client35"
    requests: Annotated[Count, Meta(description="requests of one rollout, over all workers")] = 32
    rollouts: Annotated[Count, Meta(description="rollouts of each policy, each with its own lengths")] = 3
    longest_tokens: Annotated[
        int, Meta(ge=0, description="scale lengths so that the longest drawn is this; 0: as recorded")
    ] = 256
    max_response_tokens: Annotated[
        Count, Meta(description="cut longer responses, before scaling; with [tasks] the longest response")
    ] = 32_768
    prompt_tokens: Annotated[Count, Meta(description="tokens of a prompt")] = 32
    samples_per_prompt: Annotated[
        Count, Meta(description="responses that share a prompt; workload.requests is a multiple of it")
    ] = 1
    replay_steps: Annotated[
        bool,
        Meta(
            description="take rollouts, groups and prompt lengths from the trace file `lengths` as they are, "
            "instead of drawing from it"
        ),
    ] = False


class WorkersConfig(Section, frozen=True, kw_only=True):
    """The rollout workers, one process each."""

    count: Annotated[Count, Meta(description="workers")] = 2
    tp: Annotated[
        Count, Meta(description="GPUs (CPU: times engine.threads) of one worker, tensor parallel")
    ] = 1


class PhasesConfig(Section, frozen=True, kw_only=True):
    """What follows a rollout of a replay, which trains nothing."""

    reward_s: Annotated[float, Meta(ge=0, description="rewards: a wait of so long; 0: none")] = 0.0
    logprob_s: Annotated[float, Meta(ge=0, description="log-probabilities: a wait of so long; 0: none")] = 0.0
    policy_update_s: Annotated[
        float, Meta(ge=0, description="policy update: a wait of so long, as if it ran elsewhere; 0: none")
    ] = 0.0
    weight_sync: Annotated[
        bool,
        Meta(
            description="load the weights into all engines again after the update: the same weights, so that "
            "it costs what a new version costs and changes no text"
        ),
    ] = False

    def waits_s(self) -> dict[str, float]:
        """Return the seconds of each phase that is a wait, in order."""
        waits = {"reward": self.reward_s, "logprob": self.logprob_s, "policy_update": self.policy_update_s}
        return {phase: seconds for phase, seconds in waits.items() if seconds}

    @property
    def names(self) -> tuple[str, ...]:
        """The phases of a step, in order."""
        return (*self.waits_s(), *(("weight_sync",) if self.weight_sync else ()))


class SessionsConfig(Section, frozen=True, kw_only=True):
    """Sessions of several turns with tools that sleep, in place of single responses."""

    file: Annotated[
        str, Meta(description="a file of sessions (`tlt trace`): its steps are rollouts; empty: none")
    ] = ""
    routing: Annotated[
        str, Meta(description="which worker gets the next turn: sticky, least_loaded, round_robin or prefix")
    ] = "sticky"
    tools_at_once: Annotated[
        int, Meta(ge=0, description="tool calls that run at once, the others queue; 0: no limit")
    ] = 0


class CalibrationConfig(Section, frozen=True, kw_only=True):
    """What calibrating sweeps. What is empty or 0 follows from the device."""

    batches: Annotated[
        tuple[Count, ...], Meta(description="batch sizes; empty: powers of two up to engine.max_running")
    ] = ()
    contexts_tokens: Annotated[
        tuple[Count, ...],
        Meta(description="prompt lengths that set the context; empty: 32, 128, 384 (cpu), 256, 2048, 8192"),
    ] = ()
    repeats: Annotated[Count, Meta(description="timed repeats of each point")] = 5
    visits: Annotated[
        Count, Meta(description="rounds over the whole grid that the repeats are spread over")
    ] = 2
    engine_steps_per_repeat: Annotated[
        int, Meta(ge=0, description="engine steps timed in a repeat; 0: 4 (cpu), 8 (cuda)")
    ] = 0
    most_tokens: Annotated[
        int, Meta(ge=0, description="largest batch x context; 0: 8,192 (cpu), 262,144 (cuda)")
    ] = 0
    neighbours: Annotated[
        int, Meta(ge=0, description="other engines that decode meanwhile: the workers that share a CPU")
    ] = 0
    apart: Annotated[
        bool,
        Meta(
            description="measure each engine in a process of its own, one after the other, where memory has "
            "no room for both at once; with stock graphs always"
        ),
    ] = False
    time_limit_s: Annotated[
        float, Meta(ge=0, description="stop measuring after this, engine starts left out; 0: 900, 240 (cuda)")
    ] = 0.0


class RealConfig(Section, frozen=True, kw_only=True):
    """A whole measurement."""

    name: Annotated[str, Meta(description="shown in reports")] = "replay"
    seed: Annotated[int, Meta(ge=0, description="lengths, prompts and policies follow from it")] = 0
    model: ModelConfig = ModelConfig()
    drafter: DrafterConfig = DrafterConfig()
    engine: EngineConfig = EngineConfig()
    workload: WorkloadConfig = WorkloadConfig()
    tasks: Annotated[
        TasksConfig,
        Meta(
            description="what a replay asks in place of recorded lengths: responses end where the model ends "
            "them, at workload.max_response_tokens at the latest"
        ),
    ] = TasksConfig()
    workers: WorkersConfig = WorkersConfig()
    phases: PhasesConfig = PhasesConfig()
    sessions: SessionsConfig = SessionsConfig()
    calibration: CalibrationConfig = CalibrationConfig()

    def __post_init__(self) -> None:
        if self.tasks.given and self.workload.replay_steps:
            raise InputError(
                "workload.replay_steps", True, "false with [tasks], which say what is asked",
                "leave one of them out",
            )  # fmt: skip
        if self.sessions.file and (self.tasks.given or self.workload.replay_steps):
            raise InputError(
                "sessions.file", self.sessions.file, "alone, without [tasks] and workload.replay_steps",
                "a rollout is asked one thing: leave the others out",
            )  # fmt: skip
        if self.phases.weight_sync and self.model.random_weights:
            raise InputError(
                "phases.weight_sync", True, "false with model.random_weights: there is nothing to load again",
                "prepare a model with weights, or leave it out",
            )  # fmt: skip
        if self.workers.tp > 1 and self.engine.device == "cpu" and self.drafter.kind == "ngram":
            raise InputError(
                "workers.tp", self.workers.tp,
                "1 with drafter.kind = ngram on cpu: drafts from a group need the engine in one process",
                "add workers instead, or take another drafter",
            )  # fmt: skip

    @property
    def prompts(self) -> int:
        """Prompts of one rollout; raises InputError where they have no equal number of samples."""
        if self.workload.requests % self.workload.samples_per_prompt:
            raise InputError(
                "workload.requests", self.workload.requests,
                f"a multiple of workload.samples_per_prompt = {self.workload.samples_per_prompt}",
                "change one of them",
            )  # fmt: skip
        return self.workload.requests // self.workload.samples_per_prompt
