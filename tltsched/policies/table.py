"""A fixed table from batch size to arm: what the released TLT amounts to with its default settings."""

from __future__ import annotations

import re

from tltsched.commands import Entry
from tltsched.draft_config import Arm, parse_arm
from tltsched.errors import InputError
from tltsched.policies.base import Batch, Choice, OffState, Outcome, PolicyConfig, Rng, StepTimes
from tltsched.policies.estimators.buckets import bucket_of, check_edges

_RANGE = re.compile(r"(\d+)-(\d+)=(\d+)")


class TableConfig(PolicyConfig, tag="table", frozen=True):
    """Look the arm up by the number of running requests."""

    arms_by_batch: tuple[tuple[int, str], ...]
    """Pairs (smallest batch of the bucket, arm), ascending from 1; the arm may be `off`."""
    off_state: OffState = "in_step"
    """How the engine runs in a bucket whose arm is `off`."""
    entry: Entry = "none"
    """What drafting again costs after a bucket that was off (only with off_state `dropped`)."""

    def __post_init__(self) -> None:
        check_edges("arms_by_batch", [edge for edge, _ in self.arms_by_batch])
        for _, arm in self.arms_by_batch:
            parse_arm(arm)

    def build(self, rng: Rng, times: StepTimes | None) -> TablePolicy:  # noqa: ARG002 (the rule needs neither)
        """Return the policy."""
        return TablePolicy(self)


def table_of_ranges(text: str) -> TableConfig:
    """Read `LO-HI=K+LO-HI=K+...`, the inclusive ranges of vLLM's num_speculative_tokens_per_batch_size.

    As there, the first range starts at 1, ranges do not overlap, and a batch between two ranges or past the
    last one has the K of the range below it: the upper ends change nothing but what is a valid list.
    Source: vLLM 0.32, v1/spec_decode/dynamic/utils.py. Raises InputError.
    """
    rows = []
    for part in text.split("+"):
        match = _RANGE.fullmatch(part.strip())
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
    return TableConfig(arms_by_batch=tuple((low, str(k) if k else "off") for low, _, k in rows))


class TablePolicy:
    """A choice holds down to the lower edge of its bucket, so that no decision falls inside a bucket."""

    def __init__(self, config: TableConfig) -> None:
        self.off_state: OffState = config.off_state
        self.entry: Entry = config.entry
        self._edges = [edge for edge, _ in config.arms_by_batch]
        self._choices = [Choice(parse_arm(arm), None, edge) for edge, arm in config.arms_by_batch]
        # dict.fromkeys drops repeats and keeps the order.
        self.arms: tuple[Arm, ...] = tuple(dict.fromkeys(choice.arm for choice in self._choices))

    def begin_rollout(self) -> None:
        """Nothing to forget."""

    def choose(self, batch: Batch) -> Choice:
        """Return the arm of the bucket that `batch.requests` falls in."""
        return self._choices[bucket_of(self._edges, batch.requests)]

    def observe(self, outcome: Outcome) -> None:
        """Nothing to learn."""
