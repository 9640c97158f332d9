"""The policies of a training comparison: a policy, and whether its drafter is trained on idle workers.

A policy is written POLICY or POLICY/online or POLICY/frozen: `none`, `static:4/frozen`, `tlt_chains/online`.
A policy that drafts is online unless it says otherwise, as TLT is; `none` has no drafter.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tlt.realrun.driver.plan import PolicyPlan, StepTimesOf, plan_policies
from tlt.realrun.training_config import TrainConfig
from tlt.traces.runs.runfolder import run_name
from tltsched.cluster_config import ClusterConfig
from tltsched.drafter_choice import FallbackConfig
from tltsched.errors import InputError
from tltsched.spot import SpotConfig
from tltsched.written.policy_name import PolicyName


def plan_training(
    config: TrainConfig, names: Sequence[str], step_times: StepTimesOf | None
) -> list[PolicyPlan]:
    """Return the policies; raises InputError for one that cannot run (see plan_policies)."""
    if len(set(names)) != len(names):
        raise InputError("--policies", ",".join(names), "each policy once", "remove the repeated one")
    return [_plan(config, name, step_times) for name in names]


def _plan(config: TrainConfig, name: str, step_times: StepTimesOf | None) -> PolicyPlan:
    whole = PolicyName.parse(name)
    if whole.schedule is not None:
        raise InputError(
            "--policies", name, "policies without @SCHEDULE: training runs the synchronous one",
            "replay lengths under the schedule (`tlt real replay`), or simulate it",
        )  # fmt: skip
    (plan,) = plan_policies(config.engine_settings(), [str(whole.with_drafter(None))], step_times)
    online = plan.speculating and whole.drafter != "frozen" and config.drafter.kind == "eagle3"
    if whole.drafter == "online" and not online:
        raise InputError(
            "--policies", name, "online for a policy that drafts with an eagle3 head", "leave /online out"
        )
    cluster = ClusterConfig(
        spot=config.spot if online else SpotConfig(), fallback=config.fallback if online else FallbackConfig()
    )
    setup = msgspec.structs.replace(plan.setup, cluster=cluster)
    return msgspec.structs.replace(plan, name=name, folder=run_name(name), setup=setup)
