"""The committed run whose drafts were counted by request: sums agree, decisions repeat, what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.realrun.recorded_runs import decisions_repeat
from tlt.traces.runs.request_acceptance import read_acceptance
from tlt.traces.runs.runfolder import RunFolder

DATA = Path(__file__).parents[2] / "evidence" / "runs" / "h200-smollm2-acceptance"
DRAFTING = ("static-4-frozen", "static-8-frozen", "goodput-off-2-3-4-6-frozen")


@pytest.mark.parametrize("policy", ["none", *DRAFTING])
def test_the_recorded_decisions_repeat(policy: str) -> None:
    decisions_repeat(DATA / policy)


@pytest.mark.parametrize("policy", DRAFTING)
def test_drafts_by_request_are_those_of_the_steps(policy: str) -> None:
    folder = RunFolder(DATA / policy)
    counted = read_acceptance(DATA / policy)
    assert counted is not None
    sums = counted.groupby("step")[["request_steps", "accepted_tokens"]].sum()
    steps = folder.steps().set_index("step")
    for column in sums:
        share = (sums[column] / steps[column]).to_numpy()
        # The step's sums leave out drafts that were verified in engine steps beside a prefill.
        assert (share >= 1).all()
        assert (share < 1.1).all()


def test_acceptance_rises_with_the_position_in_the_response() -> None:
    counted = read_acceptance(DATA / "static-4-frozen")
    assert counted is not None
    sums = counted.groupby("from_token")[["request_steps", "accepted_tokens"]].sum()
    lengths = (1 + sums["accepted_tokens"] / sums["request_steps"]).loc[:1024]
    assert lengths.round(3).tolist() == [1.525, 2.0, 2.165, 2.434, 2.523]


def test_a_run_without_drafts_counts_none() -> None:
    assert read_acceptance(DATA / "none") is None
