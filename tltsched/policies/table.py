"""A fixed table from batch size to draft configuration: the released TLT with its default settings."""

from __future__ import annotations

import re

from tltsched.commands import ResumeCost
from tltsched.draft_config import DraftConfig
from tltsched.errors import InputError
from tltsched.policies.base import Batch, Choice, Outcome, PolicyConfig, Rng, StepTimes, WhenOff
from tltsched.policies.estimators.batch_ranges import bucket_of, check_edges
from tltsched.written.draft_config import WrittenDraftConfig, canonical, parse_draft_config
from tltsched.written.policy_name import items_of

_RANGE = re.compile(r"(\d+)-(\d+)=(\d+)")


class TableConfig(PolicyConfig, tag="table", frozen=True):
    """Look the draft configuration up by the number of running requests."""

    draft_configs_by_batch: tuple[tuple[int, WrittenDraftConfig], ...]
    """Pairs (smallest batch of the bucket, draft configuration or `off`), ascending from 1."""
    when_off: WhenOff = "k0"
    """How the engine runs in a bucket whose draft configuration is `off`."""
    resume_cost: ResumeCost = "none"
    """What drafting again costs after a bucket that was off (only with when_off `drafter_dropped`)."""

    def __post_init__(self) -> None:
        check_edges("draft_configs_by_batch", [edge for edge, _ in self.draft_configs_by_batch])
        rows = tuple((edge, canonical(written)) for edge, written in self.draft_configs_by_batch)
        self._normalise(draft_configs_by_batch=rows)

    def build(self, rng: Rng, times: StepTimes | None) -> TablePolicy:  # noqa: ARG002 (the rule needs neither)
        """Return the policy."""
        return TablePolicy(self)


def table_of_edges(text: str) -> TableConfig:
    """Read `LO=DRAFT_CONFIG+LO=DRAFT_CONFIG+...`, each from its smallest batch on; raises InputError."""
    rows = []
    for part in items_of(text):
        edge, _, draft_config = part.partition("=")
        if not edge.isdecimal():
            raise InputError("table", part, "LO=DRAFT_CONFIG", "write for example table:1=8_4_48+9=off")
        rows.append((int(edge), draft_config))
    return TableConfig(draft_configs_by_batch=tuple(rows))


def table_of_ranges(text: str) -> TableConfig:
    """Read `LO-HI=K+LO-HI=K+...`, the inclusive ranges of vLLM's num_speculative_tokens_per_batch_size.

    As there, the first range starts at 1, ranges do not overlap, and a batch between two ranges or past the
    last one has the K of the range below it: the upper ends change nothing but what is a valid list.
    Source: vLLM 0.32, v1/spec_decode/dynamic/utils.py. Raises InputError.
    """
    rows = []
    for part in items_of(text):
        match = _RANGE.fullmatch(part)
        if match is None:
            raise InputError("vllm_table", part, "LO-HI=K", "write for example vllm_table:1-4=4+5-20=2")
        rows.append(tuple(int(number) for number in match.groups()))
    rows.sort()
    last = 0
    for low, high, _ in rows:
        if low > high or low <= last:
            raise InputError(
                "vllm_table", text, "ranges from LO up to HI that do not overlap", "correct the bounds"
            )
        last = high
    return TableConfig(draft_configs_by_batch=tuple((low, str(k) if k else "off") for low, _, k in rows))


class TablePolicy:
    """A choice holds down to the lower edge of its bucket, so that no decision falls inside a bucket."""

    def __init__(self, config: TableConfig) -> None:
        self.when_off: WhenOff = config.when_off
        self.resume_cost: ResumeCost = config.resume_cost
        self._edges = [edge for edge, _ in config.draft_configs_by_batch]
        self._choices = [
            Choice(parse_draft_config(draft_config), None, edge)
            for edge, draft_config in config.draft_configs_by_batch
        ]
        # dict.fromkeys drops repeats and keeps the order.
        self.draft_configs: tuple[DraftConfig, ...] = tuple(
            dict.fromkeys(choice.draft_config for choice in self._choices)
        )

    def begin_rollout(self) -> None:
        """Nothing to forget."""

    def choose(self, batch: Batch) -> Choice:
        """Return the draft configuration of the bucket that `batch.requests` falls in."""
        return self._choices[bucket_of(self._edges, batch.requests)]

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""
