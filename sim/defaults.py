"""What is taken where the settings leave it open: the law of acceptance, and where step times come from.

Chains, which is what vLLM drafts, unless trees were asked for: by acceptance.kind, by a policy that drafts
trees, or by step times of published trees. Step times are those of the shipped calibration of this model,
GPU, tensor parallelism and kind of draft; without one they are a roofline, which is assumed. Those of another
model or GPU are never taken unasked.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tlt.sim.steptimes.calibration import Calibration, load, shipped_names
from tlt.traces.common.settings import merge
from tltsched.errors import InputError
from tltsched.policies import PolicySpec, parse_policy
from tltsched.policies.base import Policy
from tltsched.step_times import AnyTimes
from tltsched.written.policy_name import PolicyName

AUTO, ROOFLINE = "auto", "roofline"
TREES, CHAINS = "published_tree", "per_position"
SPREADS = ("pp", "attention_dp", "ep")  # fields of hardware that spread an engine beside tp
ONE_RUN = "-one-run"  # calibrations that hold a single run, kept for what rests on them


def probe(spec: PolicySpec) -> Policy:
    """Return a policy that is asked what it is, not what to do."""
    return spec.build(random.Random(0), AnyTimes())  # noqa: S311 -- simulation, not security


def with_kind(settings: dict[str, Any], policies: Sequence[object]) -> dict[str, Any]:
    """Return the settings with acceptance.kind, decided for all `policies` together; others keep theirs."""
    acceptance = settings.get("acceptance", {})
    if not isinstance(acceptance, dict) or {"kind", "law", "read_from"} & set(acceptance):
        return settings
    source = settings.get("cost", {}).get("source", AUTO)
    if any(map(_drafts_trees, policies)) or _is_of_trees(source):
        return merge(settings, {"acceptance": {"kind": TREES}})
    return settings


def calibration_for(model: str, gpu: str, tp: int, *, trees: bool) -> str | None:
    """Return the latest shipped calibration of this model, GPU, tensor parallelism and kind of draft."""
    shipped = [load(name) for name in shipped_names() if not name.endswith(ONE_RUN)]
    fitting = [each for each in shipped if each.is_of(model, gpu, tp) and has_trees(each) == trees]
    latest = max(fitting, key=lambda each: (each.date, len(each.points)), default=None)
    return None if latest is None else latest.name


def source_of(source: str, model: str, gpu: str, tp: int, *, trees: bool, spread: bool = False) -> str:
    """Return what cost.source stands for: itself, or for `auto` a calibration or the roofline.

    spread: engines are spread otherwise than by tensor parallelism, as no calibration is.
    """
    if source != AUTO:
        return source
    if spread:
        return ROOFLINE
    return calibration_for(model, gpu, tp, trees=trees) or ROOFLINE


def has_trees(calibration: Calibration) -> bool:
    """Return whether a calibration timed trees."""
    return any(point.draft_config.topk > 1 for point in calibration.points)


def _is_of_trees(source: object) -> bool:
    if not isinstance(source, str) or source in (AUTO, ROOFLINE):
        return False
    try:
        return has_trees(load(source))
    except InputError:  # told where it is read
        return False


def _drafts_trees(policy: object) -> bool:
    """Return whether a policy, by name or as a table, drafts trees; one that cannot be read does not."""
    try:
        if isinstance(policy, str):
            spec = parse_policy(PolicyName.parse(policy).policy)
        elif isinstance(policy, Mapping):
            spec = msgspec.convert(policy, PolicySpec)
        else:
            return False
        return any(draft.depth and not draft.is_chain for draft in probe(spec).draft_configs)
    except (InputError, msgspec.ValidationError):
        return False
