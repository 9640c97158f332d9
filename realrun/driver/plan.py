"""The policies that a live engine can follow, checked before anything runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from tlt.plugin.drafting import chains_of
from tlt.realrun.config import RealConfig
from tlt.traces.runs.runfolder import run_name
from tltsched.cluster_config import ClusterConfig
from tltsched.draft_config import DraftConfig
from tltsched.errors import InputError
from tltsched.event_log import SchedulerSetup
from tltsched.policies import parse_policy
from tltsched.policies.base import Policy
from tltsched.schedules import ScheduleSpec, parse_schedule, schedule_name
from tltsched.schedules.cluster_view import UNLIMITED, Capacity
from tltsched.step_times import StepTimeTable
from tltsched.written.policy_name import PolicyName

StepTimesOf = Callable[[tuple[DraftConfig, ...], int], StepTimeTable]
"""Takes draft configurations and the largest batch; returns calibrated step times."""


class PolicyPlan(msgspec.Struct, frozen=True):
    """One policy of a comparison. `folder` is the name of its run folder."""

    name: str
    folder: str
    setup: SchedulerSetup
    speculating: bool

    @property
    def spec(self) -> ScheduleSpec:
        """The settings of its schedule."""
        return self.setup.cluster.schedule_spec()

    @property
    def trains_head(self) -> bool:
        """Whether idle workers train the drafter."""
        return self.setup.cluster.spot.enabled


def plan_policies(
    config: RealConfig, names: Sequence[str], step_times: StepTimesOf | None
) -> list[PolicyPlan]:
    """Return the policies, written POLICY or POLICY@SCHEDULE.

    Raises InputError for a policy that vLLM cannot run or that lacks a calibration, and for a schedule that
    live workers cannot follow. `step_times` is None without a calibration.
    """
    folders = [run_name(name) for name in names]
    if not names or len(set(folders)) != len(folders):
        raise InputError(
            "--policies", ",".join(names), "one policy or more, each once", "remove the repeated one"
        )
    return [
        _plan(config, PolicyName.parse(name), folder, step_times)
        for name, folder in zip(names, folders, strict=True)
    ]


def _plan(config: RealConfig, whole: PolicyName, folder: str, step_times: StepTimesOf | None) -> PolicyPlan:
    name = str(whole)
    schedule = parse_schedule(whole.schedule or "synchronous")
    spec = parse_policy(str(whole.on(None)))
    policy = chains_of("--policies", name, spec)
    _check(config, name, policy)
    times = None
    if spec.needs_times:
        if step_times is None:
            raise InputError(
                "--calibration", None, "a calibration.json made before",
                f"{name} predicts step times: run `tlt real calibrate`, or leave {name} out",
            )  # fmt: skip
        times = step_times(policy.draft_configs, config.engine.max_running)
    setup = SchedulerSetup(
        workers=config.workers.count - schedule.trainers(config.workers.count),
        policy=spec,
        cluster=ClusterConfig(
            phases=config.phases.names,
            schedule=whole.schedule or "synchronous",
            routing=config.sessions.routing,
            tools_at_once=config.sessions.tools_at_once,
        ),
        step_times=times,
        capacity=_capacity(config) if whole.schedule or config.sessions.file else UNLIMITED,
        seed=config.seed,
    )
    check_schedule(setup.cluster, forced=not config.tasks.given)
    if config.sessions.file and (not schedule.keeps_order or schedule.watches or schedule.knows_lengths):
        raise InputError(
            "schedule", name, "synchronous with sessions",
            "live sessions are begun and ended in one step: simulate this schedule instead",
        )  # fmt: skip
    return PolicyPlan(
        name,
        folder,
        setup,
        policy.when_off != "not_configured" or any(draft.depth for draft in policy.draft_configs),
    )


def _capacity(config: RealConfig) -> Capacity:
    return Capacity(max_running=config.engine.max_running, kv_tokens=float(config.engine.kv_tokens))


def check_schedule(config: ClusterConfig, forced: bool) -> None:
    """Raise InputError for a schedule that live workers cannot follow, or not without `forced` lengths."""
    spec, name = config.schedule_spec(), schedule_name(config.schedule_spec())
    if spec.moves_caches:
        raise InputError(
            "schedule", name, "schedules that prefill what they move",
            "engines do not hand KV caches to one another here: simulate this schedule instead",
        )  # fmt: skip
    if getattr(spec, "lend", False):
        raise InputError(
            "schedule", name, "schedules whose trainers only train",
            "a replay has no process for them: leave lend out, or simulate this schedule",
        )  # fmt: skip
    if not forced and (not spec.keeps_order or config.knows_lengths()):
        raise InputError(
            "schedule", name, "synchronous or repack at natural lengths",
            "leave [tasks] out: recorded lengths can be drawn from, or known, in any order",
        )  # fmt: skip


def _check(config: RealConfig, name: str, policy: Policy) -> None:
    missing = sorted({draft.depth for draft in policy.draft_configs if draft.depth} - set(config.drafter.ks))
    if missing:
        raise InputError(
            "drafter.ks", list(config.drafter.ks), f"a list with {missing}, which {name} may choose",
            "add them, so that each is warmed up, or choose another policy",
        )  # fmt: skip
