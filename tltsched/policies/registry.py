"""Speculation policies by name. A policy is one file here, and one line in PolicySpec."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import NamedTuple, get_args

from tltsched.errors import InputError
from tltsched.policies.base import PolicyConfig
from tltsched.policies.beg_mab import BegMabConfig
from tltsched.policies.disable_by_batch import DisableByBatchConfig
from tltsched.policies.fastgrpo import FastGrpoConfig
from tltsched.policies.goodput import GoodputConfig
from tltsched.policies.none import NoneConfig
from tltsched.policies.sglang_ema import SglangEmaConfig
from tltsched.policies.sglang_throughput import SglangThroughputConfig
from tltsched.policies.static import StaticConfig
from tltsched.policies.table import TableConfig, table_of_edges, table_of_ranges
from tltsched.policies.threshold import ThresholdConfig
from tltsched.policies.turbospec import TurboSpecConfig
from tltsched.policies.vllm_adaptive import VllmAdaptiveConfig
from tltsched.written.parameters import split_parameters, with_parameters
from tltsched.written.policy_name import PolicyName, items_of

PolicySpec = (
    NoneConfig
    | StaticConfig
    | TableConfig
    | BegMabConfig
    | ThresholdConfig
    | GoodputConfig
    | SglangEmaConfig
    | SglangThroughputConfig
    | VllmAdaptiveConfig
    | TurboSpecConfig
    | FastGrpoConfig
    | DisableByBatchConfig
)  # fmt: skip

POLICIES: tuple[type[PolicyConfig], ...] = get_args(PolicySpec)

# Accepted length with the bonus token by tree: published, arXiv 2511.16665, Figure 13.
PUBLISHED_TREES = {"10_8_64": 8.21, "10_8_48": 7.97, "8_8_32": 7.01, "8_8_16": 6.34, "4_8_16": 4.63}

# Of an average over all that ran, which moves with who is left; assumed, as in earlier versions.
MEAN_HYSTERESIS = 0.03

# Names that users type. Widths by batch follow the best ones of the paper's Table 4 (64 tokens at a batch of
# 1, 48 at 2 to 4, fewer above); depths are near the best of its Figure 13. The paper does not print the
# strategies of its end-to-end runs: those of `tlt` and `tlt_table` are assumed, the code has those of
# `tlt_released`.
PRESETS: dict[str, PolicySpec] = {
    "none": NoneConfig(),
    "tlt": ThresholdConfig(
        inner=BegMabConfig(
            variant="paper",
            strategies=(
                *("10_8_64", "8_8_64"),
                *("10_8_48", "8_8_48"),
                *("8_8_32", "6_8_32"),
                *("8_8_16", "6_8_16", "4_8_16"),
            ),
        ),
        latch=False,
        when_off="drafter_dropped",
        resume_cost="draft_prefill",
    ),
    "tlt_released": ThresholdConfig(
        inner=BegMabConfig(variant="released"),
        latch=True,
        when_off="drafter_dropped",
        resume_cost="reprefill",
    ),
    "tlt_table": ThresholdConfig(
        inner=TableConfig(
            draft_configs_by_batch=((1, "10_8_64"), (2, "10_8_48"), (5, "10_8_32"), (21, "8_8_16"))
        ),
        latch=False,
        when_off="drafter_dropped",
        resume_cost="draft_prefill",
    ),
    # The same threshold on an engine that drafts chains and keeps the drafter in step (vLLM). K by batch is
    # assumed: the best of a 7B shape on one H100 at a typical acceptance.
    "tlt_chains": ThresholdConfig(
        inner=TableConfig(draft_configs_by_batch=((1, "4"), (9, "3"), (21, "2"))),
        latch=False,
        when_off="k0",
        resume_cost="none",
    ),
    "goodput": GoodputConfig(),
    # The same with acceptance averaged over all that ran, for engines that do not tell drafts by request.
    "goodput_mean": GoodputConfig(by_request=False, hysteresis=MEAN_HYSTERESIS),
    # Trees, with the acceptance lengths of the paper's Figure 13 as the prior; drafter rebuilt when needed.
    "goodput_trees": GoodputConfig(
        draft_configs=("off", *PUBLISHED_TREES),
        when_off="drafter_dropped",
        resume_cost="draft_prefill",
        tree_prior=dict(PUBLISHED_TREES),
    ),
    # Rules of other tools, each with the defaults of its source where it has any.
    "sglang_ema": SglangEmaConfig(),
    "sglang_throughput": SglangThroughputConfig(),
    "vllm_adaptive": VllmAdaptiveConfig(),
    "turbospec": TurboSpecConfig(),
    "fastgrpo": FastGrpoConfig(
        draft_configs=tuple(PUBLISHED_TREES), when_off="drafter_dropped", resume_cost="draft_prefill"
    ),
    "fastgrpo_chains": FastGrpoConfig(draft_configs=("1", "2", "3", "4", "5", "6", "7", "8")),
    "disable_by_batch": DisableByBatchConfig(),
}


ALONE = "no schedule and no drafter can be stated here"


class Form(NamedTuple):
    """A policy that is written as a name, a colon and an argument."""

    shape: str
    advice: str
    read: Callable[[str], PolicySpec]


FORMS: dict[str, Form] = {
    "static": Form(
        "static:DRAFT_CONFIG",
        "write static:DRAFT_CONFIG, for example static:4",
        lambda text: StaticConfig(draft_config=text.strip()),
    ),
    "goodput": Form(
        "goodput:DRAFT_CONFIG+DRAFT_CONFIG+...",
        "write goodput:off+1+2+4",
        lambda text: GoodputConfig(draft_configs=items_of(text)),
    ),
    "goodput_mean": Form(
        "goodput_mean:DRAFT_CONFIG+DRAFT_CONFIG+...",
        "write goodput_mean:off+1+2+4",
        lambda text: GoodputConfig(
            draft_configs=items_of(text), by_request=False, hysteresis=MEAN_HYSTERESIS
        ),
    ),
    "table": Form("table:LO=DRAFT_CONFIG+...", "write for example table:1=8_4_48+9=off", table_of_edges),
    "vllm_table": Form(
        "vllm_table:LO-HI=K+...", "write for example vllm_table:1-4=4+5-20=2", table_of_ranges
    ),
}


def parse_policy(text: str) -> PolicySpec:
    """Read a preset name or a form: `static:4`, `goodput:off+1+2+4`, `table:1=8_4_48+9=off`, ...

    Parameters stand in brackets: `goodput(hysteresis=0.01)`.
    Raises InputError on an unknown name or draft configuration; its text lists the names and the nearest one.
    """
    whole = PolicyName.parse(text)
    if whole.schedule is not None or whole.drafter is not None:
        raise InputError("policy", text, "a policy alone", f"write {whole.policy}: {ALONE}")
    written, given = split_parameters(whole.policy, "policy")
    name, argument = PolicyName(written).form
    form = FORMS.get(name)
    if form and argument:
        return with_parameters(form.read(argument), given, "policy")
    if name in PRESETS and argument is None:
        return with_parameters(PRESETS[name], given, "policy")
    allowed = ", ".join(sorted((*PRESETS, *(known.shape for known in FORMS.values()))))
    near = get_close_matches(name, (*PRESETS, *FORMS), n=1)
    fix = f"did you mean {near[0]}?" if near else "choose one of these"
    raise InputError("policy", text, allowed, form.advice if form else fix)
