"""Settings that a configuration cannot use: an error, so that nothing that was asked for is dropped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tlt.sim.config import Config
from tlt.sim.defaults import ROOFLINE
from tlt.sim.steptimes.drafters import OWN_COST
from tlt.traces.sessions.files import is_session_file, sessions_path
from tltsched.errors import InputError

# Field or section, whether it is without effect, and what has the effect instead.
Rule = tuple[str, Callable[[Config], bool], str, str]
SAMPLED = ("prompts_per_step", "samples_per_prompt", "group_correlation", "length_drift_per_step")
RULES: tuple[Rule, ...] = (
    *(
        (
            f"workload.{name}",
            lambda config: config.workload.replay_steps and not config.workload.sessions,
            "steps, prompts and samples are those of the trace (workload.replay_steps)",
            "leave it out, or replay_steps = false to sample the lengths",
        )
        for name in SAMPLED
    ),
    *(
        (
            path,
            lambda config: not config.workload.sessions,
            "requests are single responses (workload.sessions is empty)",
            "give workload.sessions, or leave it out",
        )
        for path in ("tools", "engine.tool_wait_kv", "cluster.routing", "cluster.tools_at_once")
    ),
    *(
        (
            f"workload.{name}",
            lambda config: bool(config.workload.sessions),
            "requests are sessions (workload.sessions), whose file says it",
            "leave it out",
        )
        for name in ("lengths", "replay_steps", "max_response_tokens", "prompt_tokens", *SAMPLED[2:])
    ),
    *(
        (
            f"workload.{name}",
            lambda config: (
                bool(config.workload.sessions) and is_session_file(sessions_path(config.workload.sessions))
            ),
            "sessions are recorded (workload.sessions), with their prompts and samples",
            "leave it out, or draw sessions from laws (`tlt trace fit`)",
        )
        for name in SAMPLED[:2]
    ),
    (
        "acceptance.rate",
        lambda config: config.acceptance.kind != "geometric",
        "acceptance.kind is not 'geometric'",
        "set acceptance.kind='geometric', or leave it out",
    ),
    (
        "acceptance.survival_by_position",
        lambda config: config.acceptance.kind != "per_position",
        "acceptance.kind is not 'per_position'",
        "set acceptance.kind='per_position', or leave it out",
    ),
    (
        "cost.roofline",
        lambda config: config.cost.source != ROOFLINE and config.drafter.kind not in OWN_COST,
        "step times are those of a calibration (cost.source), the drafter's too",
        "set cost.source='roofline', or leave it out",
    ),
    *(
        (
            f"cost.known.{name}",
            lambda config: config.cost.known.plain_step_s is None,
            "no step was timed (cost.known.plain_step_s)",
            "give cost.known.plain_step_s, or leave it out",
        )
        for name in ("draft", "batch", "context_tokens")
    ),
    (
        "drafter.history",
        lambda config: config.drafter.model_free is None,
        "drafts come from a head (drafter.kind)",
        "set drafter.kind='history' or 'ngram', or leave it out",
    ),
    (
        "phases.sync_pause_s",
        lambda config: not config.cluster.schedule_spec().overlaps,
        "engines stand still anyway when weights go out under this schedule",
        "compare a schedule whose rollouts go on, such as bounded_async, or leave it out",
    ),
    (
        "phases.lend_s",
        lambda config: not getattr(config.cluster.schedule_spec(), "lend", False),
        "no schedule here lends its trainers",
        "take bounded_async(lend=true), or leave it out",
    ),
    *(
        (
            f"phases.{name}",
            lambda config: _sync_is_given(config),
            "the seconds of a weight sync are given (phases.weight_sync_s)",
            "leave one of them out",
        )
        for name in ("sync_transport", "sync_bytes_per_s")
    ),
)


def _sync_is_given(config: Config) -> bool:
    phases = config.phases
    return phases.weight_sync_s is not None or "weight_sync" in phases.by_step_s


def refuse_unused(settings: dict[str, Any], *configs: Config) -> None:
    """Raise InputError for what `settings` has that none of `configs`, made of them, uses.

    What is set to its default passes: a whole resolved configuration is a configuration.
    """
    for path, unused, reason, fix in RULES:
        given = _at(settings, path)
        if given is not None and all(map(unused, configs)) and _differs(given, _at_struct(Config(), path)):
            raise InputError(path, given, f"nothing here: {reason}", fix)


def _at(settings: dict[str, Any], path: str) -> Any:
    value: Any = settings
    for part in path.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _at_struct(config: Any, path: str) -> Any:
    for part in path.split("."):
        config = getattr(config, part)
    return config


def _differs(given: Any, default: Any) -> bool:
    if isinstance(given, dict):
        return any(_differs(value, getattr(default, name, None)) for name, value in given.items())
    return bool((tuple(given) if isinstance(given, list) else given) != default)
