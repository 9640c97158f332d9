"""The configuration of a simulation: one TOML file, and `--set section.field=value` on top.

`resolve` checks it, `fields` lists every field with its default and meaning. What a name stands for (a preset
policy and the engine it implies) is resolved here, and the resolved form is written beside the results.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from sim.drafter import DrafterConfig
from sim.phases import PHASES, PhaseConfig
from sim.roofline import Assumptions
from tltsched.cluster import ClusterConfig
from tltsched.errors import InputError
from tltsched.speculation import POLICIES, PolicySpec, parse_policy

Mode = Literal["jump", "exact"]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the sections."""


class HardwareConfig(Section, frozen=True, kw_only=True):
    """GPUs, and the model whose policy is trained on them."""

    gpus: Annotated[int, Meta(ge=1, description="GPUs of the cluster; a multiple of tp")] = 64
    tp: Annotated[int, Meta(ge=1, description="GPUs of one rollout worker (tensor parallel)")] = 4
    gpu: Annotated[str, Meta(description="a name of sim.shapes.GPUS: A100, H100, H200, B200, H20, L40")] = (
        "H100"
    )
    model: Annotated[str, Meta(description="a name of sim.shapes.MODELS, such as Qwen2.5-32B")] = (
        "Qwen2.5-32B"
    )


class CostConfig(Section, frozen=True, kw_only=True):
    """Where step times come from."""

    source: Annotated[
        str,
        Meta(description="a shipped calibration, the path of a calibration.json, or 'roofline' (assumed)"),
    ] = "paper-qwen32b-tp4"
    roofline: Annotated[Assumptions, Meta(description="efficiencies that a roofline assumes")] = Assumptions()


class WorkloadConfig(Section, frozen=True, kw_only=True):
    """What is generated in each RL step."""

    lengths: Annotated[
        str, Meta(description="shipped lengths (r1-client35, r1-client66, r1-all, ...) or a trace file")
    ] = "r1-client35"
    steps: Annotated[int, Meta(ge=1, description="RL steps")] = 8
    prompts_per_step: Annotated[int, Meta(ge=1, description="prompts in a step")] = 128
    samples_per_prompt: Annotated[int, Meta(ge=1, description="responses to each prompt")] = 8
    cap_tokens: Annotated[int, Meta(ge=1, description="longest response; longer ones are cut")] = 32_768
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


class AcceptanceConfig(Section, frozen=True, kw_only=True):
    """How many drafts the target accepts."""

    kind: Annotated[
        Literal["published_tree", "per_position", "geometric"],
        Meta(description="published_tree: TLT figure 13 (trees); per_position, geometric: chains"),
    ] = "published_tree"
    survival_by_position: Annotated[
        tuple[float, ...], Meta(description="per_position: P(drafts up to position j are all accepted)")
    ] = (0.8, 0.64, 0.5, 0.4, 0.32, 0.25, 0.2, 0.16)
    rate: Annotated[
        float, Meta(ge=0.0, le=1.0, description="geometric: acceptance of each further draft")
    ] = 0.7
    request_spread: Annotated[
        float, Meta(ge=0.0, description="assumed: log-normal spread of the exponent between requests")
    ] = 0.0

    def __post_init__(self) -> None:
        falls = (1.0, *self.survival_by_position, 0.0)
        if not self.survival_by_position or not all(high >= low for high, low in pairwise(falls)):
            raise InputError(
                "acceptance.survival_by_position", list(self.survival_by_position),
                "probabilities in [0, 1] that never rise", "give survivals, not conditional rates",
            )  # fmt: skip


class EngineConfig(Section, frozen=True, kw_only=True):
    """One rollout engine."""

    max_running: Annotated[int, Meta(ge=1, description="largest running batch")] = 256
    memory_fraction: Annotated[
        float, Meta(gt=0.0, le=1.0, description="share of GPU memory that weights, graphs and KV may take")
    ] = 0.9
    graph_bytes: Annotated[
        Annotated[float, Meta(ge=0.0)] | None,
        Meta(
            description="CUDA graphs per GPU; unset: 7.81 GB for one drafting arm, 10.69 GB for several "
            "(published), 2 GB without drafts (assumed)"
        ),
    ] = None
    chunk_tokens: Annotated[int, Meta(ge=1, description="prefill tokens in one step (assumed 8192)")] = 8192
    prefix_caching: Annotated[bool, Meta(description="a prompt is prefilled once a worker and group")] = True
    graph_max_requests: Annotated[
        int, Meta(ge=0, description="above it, decode without drafts has no CUDA graph; 0: no limit")
    ] = 0
    eager_s_per_layer: Annotated[
        float, Meta(ge=0.0, description="assumed: what a layer costs more without a CUDA graph")
    ] = 0.1e-3


class RunConfig(Section, frozen=True, kw_only=True):
    """The run itself."""

    name: Annotated[str, Meta(description="shown in reports")] = "simulation"
    seed: Annotated[int, Meta(ge=0, description="all draws follow from it")] = 0
    mode: Annotated[Mode, Meta(description="jump: closed form between decisions; exact: every cycle")] = (
        "jump"
    )
    records: Annotated[bool, Meta(description="write every event and command to records.jsonl")] = True


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
    cluster: ClusterConfig = ClusterConfig()
    policy: Annotated[
        str | PolicySpec,
        Meta(description="a preset name, static:ARM, goodput:ARM+ARM, or a table with `kind`"),
    ] = "tlt"

    def __post_init__(self) -> None:
        if self.hardware.gpus % self.hardware.tp:
            raise InputError(
                "hardware.gpus", self.hardware.gpus, f"a multiple of hardware.tp = {self.hardware.tp}",
                "change one of them",
            )  # fmt: skip
        unknown = [phase for phase in self.cluster.phases if phase not in PHASES]
        if unknown:
            raise InputError("cluster.phases", unknown, ", ".join(PHASES), "leave out what is not listed")

    @property
    def workers(self) -> int:
        """Rollout workers of the cluster."""
        return self.hardware.gpus // self.hardware.tp


# What a named policy implies for the engine around it, unless the user sets the field.
# tlt_released: CUDA graphs up to 32 requests, 512 running at most, drafter training off (tlt.md 2.2, 4).
IMPLIED: dict[str, dict[str, Any]] = {
    "tlt": {"cluster": {"spot": {"enabled": True}}},
    "tlt_released": {"engine": {"graph_max_requests": 32, "max_running": 512}},
}


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Return `below` with the fields of `above` on top, section by section."""
    merged = dict(below)
    for key, value in above.items():
        nested = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if nested else value
    return merged


def _assignment(text: str) -> dict[str, Any]:
    """Read `a.b=3` as {"a": {"b": 3}}; a value that is no TOML is a string."""
    path, equals, value = text.partition("=")
    if not equals or not all(part.isidentifier() for part in path.strip().split(".")):
        raise InputError("--set", text, "section.field=value", "for example --set workload.steps=20")
    try:
        parsed: Any = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    for part in reversed(path.strip().split(".")):
        parsed = {part: parsed}
    return dict(parsed)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError("--config", str(path), "a readable TOML file", str(error)) from None
    except tomllib.TOMLDecodeError as error:
        raise InputError("--config", str(path), "valid TOML", f"correct it: {error}") from None


def settings_of(path: Path | None, assignments: tuple[str, ...]) -> dict[str, Any]:
    """Return what the user set, as nested tables: the file, then each assignment on top."""
    settings = _read(path) if path else {}
    for text in assignments:
        settings = _merge(settings, _assignment(text))
    return settings


def resolve(settings: dict[str, Any], policy: str | None = None) -> Config:
    """Return the checked configuration; `policy` replaces the policy that the settings name.

    Raises InputError that names the field.
    """
    if policy is not None:
        settings = settings | {"policy": policy}
    named = settings.get("policy", Config().policy)
    implied = IMPLIED.get(named, {}) if isinstance(named, str) else {}
    settings = _merge(implied, settings)
    try:
        config = msgspec.convert(settings, Config)
    except msgspec.ValidationError as error:
        raise _explained(error, settings) from None
    _require_finite(msgspec.to_builtins(config), "")
    spec = parse_policy(config.policy) if isinstance(config.policy, str) else config.policy
    return msgspec.structs.replace(config, policy=spec)


def _explained(error: msgspec.ValidationError, settings: dict[str, Any]) -> InputError:
    """Return the error that names the field, the value that was given and what the field may hold."""
    message, _, path = str(error).partition(" - at `$.")
    where = path.rstrip("`")
    inner = error.__cause__
    if isinstance(inner, InputError):  # a check of ours, which msgspec wrapped
        name = f"{where}.{inner.field}" if where and "." not in inner.field else inner.field
        return InputError(name, inner.got, inner.allowed, inner.fix)
    see = "`tlt sim fields` lists every field"
    unknown = re.fullmatch(r"Object contains unknown field `(.*)`", message)
    if unknown:
        known, prefix = _names_in(settings, where), f"{where}." if where else ""
        near = difflib.get_close_matches(unknown[1], known, n=1)
        fix = f"did you mean {prefix}{near[0]}?" if near else see
        name = prefix + unknown[1]
        return InputError(name, _given(settings, name), ", ".join(known), fix)
    meaning = next((text for name, _, text in fields() if name == re.sub(r"\[.*", "", where)), "")
    if where.endswith("kind") and where.startswith("policy."):
        meaning = ", ".join(str(kind.__struct_config__.tag) for kind in POLICIES)
    expected = re.sub(r"^Expected (.*?)(, got .*)?$", r"\1", message)
    both = [text for text in ("" if message.startswith("Invalid") and meaning else expected, meaning) if text]
    return InputError(where or "configuration", _given(settings, where), "; ".join(both), see)


def _names_in(settings: dict[str, Any], where: str) -> list[str]:
    """Return the names of the fields of a section, or of a policy table of some kind."""
    table = _given(settings, where)
    if isinstance(table, dict) and "kind" in table:
        return [name for kind in POLICIES if kind.__struct_config__.tag == table["kind"]
                for name in kind.__struct_fields__]  # fmt: skip
    prefix = f"{where}." if where else ""
    inside = [name[len(prefix) :] for name, _, _ in fields() if name.startswith(prefix)]
    return list(dict.fromkeys(name.partition(".")[0] for name in inside))


def _given(settings: dict[str, Any], where: str) -> object:
    """Return what the user set at a path such as `hardware.gpus` or `cluster.phases[0]`."""
    value: Any = settings
    for part in re.findall(r"[^.\[\]]+", where):
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, (list, tuple)) and part.isdecimal():
            value = value[int(part)]
        else:
            break
    return value


def _require_finite(value: object, where: str) -> None:
    """Raise InputError that names the field if a number anywhere in a configuration is NaN or infinite."""
    if isinstance(value, dict):
        for name, inner in value.items():
            _require_finite(inner, f"{where}.{name}" if where else str(name))
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _require_finite(inner, where)
    elif isinstance(value, float) and not isfinite(value):
        raise InputError(where, value, "finite numbers", "give a number")


def fields(kind: type[msgspec.Struct] = Config, prefix: str = "") -> list[tuple[str, str, str]]:
    """Return (name, default, meaning) of every field that a configuration file may set."""
    rows: list[tuple[str, str, str]] = []
    for field in msgspec.structs.fields(kind):
        default = field.default if field.default is not msgspec.NODEFAULT else None
        if isinstance(default, msgspec.Struct):
            rows += fields(type(default), f"{prefix}{field.name}.")
            continue
        meta = getattr(field.type, "__metadata__", ())
        meaning = next((item.description for item in meta if isinstance(item, Meta) and item.description), "")
        rows.append((prefix + field.name, msgspec.json.encode(default).decode(), meaning))
    return rows
