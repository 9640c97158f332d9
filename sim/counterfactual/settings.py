"""The settings under which an observed run is simulated: what it states, then what the user says on top."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tlt.sim.config import Config, WorkloadConfig, resolve
from tlt.sim.counterfactual.drafted import acceptance_of
from tlt.sim.counterfactual.drafted import observed_policy as policy_of
from tlt.sim.counterfactual.log_times import phases_by_step_s
from tlt.sim.counterfactual.observed_run import Observed
from tlt.sim.defaults import AUTO, CHAINS, ROOFLINE, SPREADS, TREES, has_trees, source_of, with_kind
from tlt.sim.model.phases import PHASES
from tlt.sim.policy_set import check_names
from tlt.sim.steptimes.calibration import load
from tlt.sim.unused import SAMPLED
from tlt.traces.common.settings import merge
from tltsched.cluster_config import ClusterConfig
from tltsched.errors import InputError
from tltsched.written.policy_name import PolicyName

STATED = ("gpus", "tp", "gpu", "model")
OTHER_GPUS, ROUNDING = 1.25, 0.1  # a ratio; of a GPU
RESAMPLED_STEPS = 8  # of a run that has one step
SCHEDULES = ("tail_batching", "divided", "oversample_partial", "longest_first")


@dataclass(frozen=True)
class Replay:
    """A run, the configuration of each policy that replays it, and sentences on what is assumed in them.

    The observed policy is the first.
    """

    observed: Observed
    configs: dict[str, Config]
    assumptions: tuple[str, ...]

    @property
    def units(self) -> int:
        """How often progress is told: each step of each policy, its errors, its what-if."""
        steps = next(iter(self.configs.values())).workload.steps
        return len(self.configs) * (steps + 2)


def replay_of(
    observed: Observed,
    given: dict[str, Any],
    lengths: Path,
    policies: Sequence[str] | None = None,
    observed_policy: str | None = None,
) -> Replay:
    """Resolve every policy, once, on what the run states and what the user says on top (`given`).

    `policies` None: those that suit the acceptance law. `observed_policy` None: what the run states, else
    none. `lengths` is the file that will hold the lengths. Raises InputError for what is missing or wrong.
    """
    refuse_replaced(given)
    given = with_kind(given, policies or ())
    asked = given.get("workload", {}).get("steps")
    if isinstance(asked, int) and asked > 0:
        observed = observed.first(asked)
    policy = policy_of(observed.drafts, observed_policy, observed.policy)
    numbers = observed.step_numbers()
    steps = RESAMPLED_STEPS if len(numbers) == 1 else len(numbers)
    values, assumptions = settings_of_run(observed, given, lengths, steps, policy)
    base = resolve(values, policy)
    names = policies_of(policies, base, policy)
    check_names(names)
    configs = {name: base if name == policy else resolve(values, name) for name in names}
    return Replay(observed, _possible(configs, observed, named=policies is not None), assumptions)


def refuse_replaced(given: dict[str, Any]) -> None:
    """Raise InputError for settings of the workload that the run itself states."""
    for name in ("lengths", "replay_steps", *SAMPLED):
        value = given.get("workload", {}).get(name)
        if value is not None:
            raise InputError(
                f"workload.{name}", value, "nothing here: lengths, prompts and samples are those of the run",
                "leave it out; --responses says how many responses a step had where the log does not",
            )  # fmt: skip


def policies_of(named: Sequence[str] | None, config: Config, policy: str) -> list[str]:
    """Return the policies, the observed policy first; by default a few of each kind."""
    if named is not None:
        return [policy, *(name for name in named if name != policy)]
    trees = config.acceptance.kind == "published_tree" and config.drafter.model_free is None
    drafting = ("static:10_8_16", "tlt", "goodput_trees") if trees else ("static:4", "tlt_chains", "goodput")
    whole = PolicyName.parse(policy)
    others = [str(whole.on(schedule)) for schedule in SCHEDULES if schedule != whole.schedule]
    return [policy, *(name for name in ("none", *drafting) if name != policy), *others]


def _possible(configs: dict[str, Config], observed: Observed, *, named: bool) -> dict[str, Config]:
    """Return the policies without those whose steps could not train on as many responses as the run did.

    Nor can schedules that change the order be judged where responses wait for tools, nobody knows which and
    how long. Raises InputError if one of those was named.
    """
    reordering = [name for name, config in configs.items() if not config.cluster.schedule_spec().keeps_order]
    why = observed.why_order_is_kept()
    if not reordering or not why:
        return configs
    if named:
        raise InputError(
            "--policies", reordering[0], "schedules that keep the order of samples", f"{why}: leave it out"
        )
    return {name: config for name, config in configs.items() if name not in reordering}


def settings_of_run(
    observed: Observed, given: dict[str, Any], lengths: Path, steps: int, policy: str = "none"
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the settings that replay `lengths` over `steps`, and sentences on what was assumed in them.

    Raises InputError if hardware is not known.
    """
    values = _with_gpus(merge(observed.settings, given), observed)
    hardware = values.get("hardware", {})
    missing = [name for name in STATED if name not in hardware]
    if missing:
        raise InputError(
            "hardware", ", ".join(hardware) or "nothing", f"{', '.join(STATED)} of the run",
            f"give {', '.join(missing)}: --gpus, --tp, --set hardware.gpu=H100, --set hardware.model=NAME",
        )  # fmt: skip
    _check_gpus(observed, hardware["gpus"])
    assumptions: list[str] = []
    values = _with_costs(values, assumptions)
    values = _with_stated(values, observed, policy, assumptions)
    values = _with_acceptance(values, assumptions)
    values = merge(values, {"workload": _workload(observed, values, lengths, steps, assumptions)})
    if "name" not in values.get("run", {}):
        values = merge(values, {"run": {"name": f"counterfactual of {observed.source}"}})
    return _with_phases(values, observed, steps, assumptions), tuple(assumptions)


def _with_gpus(values: dict[str, Any], observed: Observed) -> dict[str, Any]:
    """Return the settings with the GPUs that the log states, unless they are given."""
    stated = observed.stated_gpus()
    if stated is None or "gpus" in values.get("hardware", {}) or abs(stated[0] - round(stated[0])) > ROUNDING:
        return values
    return merge(values, {"hardware": {"gpus": round(stated[0])}})


def _check_gpus(observed: Observed, gpus: int) -> None:
    """Raise InputError if the log says that the rollouts ran on clearly fewer or more GPUs than given."""
    stated = observed.stated_gpus()
    if stated is None or 1 / OTHER_GPUS < gpus / stated[0] < OTHER_GPUS:
        return
    raise InputError(
        "--gpus", gpus, f"about {stated[0]:,.3g}: on so many the rollouts ran, by {stated[1]}",
        "give the GPUs that roll out, or --responses if the number of responses is wrong",
    )  # fmt: skip


def _with_costs(values: dict[str, Any], assumptions: list[str]) -> dict[str, Any]:
    """Return the settings with step times: those named, else shipped ones that fit, else a roofline."""
    given = values.get("cost", {}).get("source", AUTO)
    if given != AUTO:
        return merge(values, {"cost": {}})
    hardware = values["hardware"]
    trees = values.get("acceptance", {}).get("kind") == TREES
    spread = any(hardware.get(field, 1) != 1 for field in SPREADS)
    source = source_of(AUTO, hardware["model"], hardware["gpu"], hardware["tp"], trees=trees, spread=spread)
    why = (
        "step times are a roofline (assumed): no shipped calibration is of this model, GPU, tensor "
        "parallelism and kind of draft"
        if source == ROOFLINE
        else f"step times: {source}, shipped: of this model, GPU, tensor parallelism and kind of draft"
    )
    assumptions.append(f"{why} (cost.source)")
    return merge(values, {"cost": {"source": source}})


def _with_stated(
    values: dict[str, Any], observed: Observed, policy: str, assumptions: list[str]
) -> dict[str, Any]:
    """Return the settings with the acceptance and concurrency that a log states, unless they are given."""
    if observed.drafts is not None and "acceptance" not in values:
        section, told = acceptance_of(observed.drafts, policy)
        if section:
            assumptions.append(f"{told} (acceptance.*)")
            values = merge(values, {"acceptance": section})
    if observed.concurrency is not None and "max_running" not in values.get("engine", {}):
        workers = max(values["hardware"]["gpus"] // values["hardware"]["tp"], 1)
        running = -(-observed.concurrency // workers)
        told = f"at most {observed.concurrency:,} requests ran at once, as the benchmark limited them"
        assumptions.append(f"{told}: {running:,} a worker (engine.max_running)")
        values = merge(values, {"engine": {"max_running": running}})
    return values


def _with_acceptance(values: dict[str, Any], assumptions: list[str]) -> dict[str, Any]:
    """Return the settings with a law of acceptance: chains, unless the step times are of published trees."""
    if "acceptance" in values or values.get("drafter", {}).get("kind") == "history":
        return values
    source = values["cost"]["source"]
    kind = TREES if source != ROOFLINE and has_trees(load(source)) else CHAINS
    assumptions.append(f"acceptance is not given: {kind} with its defaults is taken (acceptance.*)")
    return merge(values, {"acceptance": {"kind": kind}})


def _workload(
    observed: Observed, values: dict[str, Any], lengths: Path, steps: int, assumptions: list[str]
) -> dict[str, Any]:
    rows, cap = observed.trace.rows, observed.trace.origin.max_response_tokens or 1
    given = values.get("workload", {})
    unknown = int((rows["prompt_tokens"] == 0).sum())
    if unknown:
        tokens = given.get("prompt_tokens", WorkloadConfig().prompt_tokens)
        assumptions.append(
            f"prompts of {unknown:,} responses are of unknown length: {tokens:,} tokens assumed"
        )
    return {
        "lengths": str(lengths),
        "replay_steps": True,
        "steps": steps,
        "max_response_tokens": max(cap, int(rows["response_tokens"].max())),
    }


def _with_phases(
    values: dict[str, Any], observed: Observed, steps: int, assumptions: list[str]
) -> dict[str, Any]:
    """Return the settings with the phases of the log; without one they are modelled."""
    if observed.logged is None and observed.trace.origin.kind == "serving":
        assumptions.append("requests of a service have no RL phases: none are added (phases.*)")
        return merge({"phases": {"by_step_s": dict.fromkeys(PHASES, (0.0,) * steps)}}, values)
    if observed.logged is None:
        assumptions.append("phases after the rollout are modelled (phases.* gives them)")
        return values
    seconds, notes = phases_by_step_s(observed.logged, len(observed.step_numbers()))
    assumptions += [*observed.logged.notes, *notes]
    if len(observed.step_numbers()) == 1:
        seconds = {name: each * steps for name, each in seconds.items()}
    wanted = values.get("cluster", {}).get("phases", ClusterConfig().phases)
    names = [name for name in PHASES if name in wanted or name in seconds]
    return merge(values, {"phases": {"by_step_s": seconds}, "cluster": {"phases": names}})
