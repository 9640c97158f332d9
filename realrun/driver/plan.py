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
from tltsched.policies import PolicySpec, parse_policy
from tltsched.policies.base import Policy
from tltsched.step_times import StepTimeTable

StepTimesOf = Callable[[tuple[DraftConfig, ...], int], StepTimeTable]
"""Takes draft configurations and the largest batch; returns calibrated step times."""


class PolicyPlan(msgspec.Struct, frozen=True):
    """One policy of a comparison. `folder` is the name of its run folder."""

    name: str
    folder: str
    setup: SchedulerSetup
    speculating: bool

    @property
    def trains_head(self) -> bool:
        """Whether idle workers train the drafter."""
        return self.setup.cluster.spot.enabled


def plan_policies(
    config: RealConfig, names: Sequence[str], step_times: StepTimesOf | None
) -> list[PolicyPlan]:
    """Return the policies; raises InputError for a policy that vLLM cannot run or that lacks a calibration.

    `step_times` is None without a calibration.
    """
    folders = [run_name(name) for name in names]
    if not names or len(set(folders)) != len(folders):
        raise InputError(
            "--policies", ",".join(names), "one policy or more, each once", "remove the repeated one"
        )
    return [
        _plan(config, name, parse_policy(name), folder, step_times)
        for name, folder in zip(names, folders, strict=True)
    ]


def _plan(
    config: RealConfig, name: str, spec: PolicySpec, folder: str, step_times: StepTimesOf | None
) -> PolicyPlan:
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
        workers=config.workers.count,
        policy=spec,
        cluster=ClusterConfig(phases=()),
        step_times=times,
        seed=config.seed,
    )
    return PolicyPlan(
        name,
        folder,
        setup,
        policy.when_off != "not_configured" or any(draft.depth for draft in policy.draft_configs),
    )


def _check(config: RealConfig, name: str, policy: Policy) -> None:
    missing = sorted({draft.depth for draft in policy.draft_configs if draft.depth} - set(config.drafter.ks))
    if missing:
        raise InputError(
            "drafter.ks", list(config.drafter.ks), f"a list with {missing}, which {name} may choose",
            "add them, so that each is warmed up, or choose another policy",
        )  # fmt: skip
