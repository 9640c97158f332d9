"""The committed training run on four H200: it can be read, its books close, its decisions repeat."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.realrun.recorded_runs import decisions_repeat, every_gpu_second_is_booked, name
from tlt.sim.drift import load_drift
from tlt.traces.runs.acceptance import acceptance_length_with_bonus
from tlt.traces.runs.decision_intervals import read_decision_intervals
from tlt.traces.runs.records import RECORDS
from tlt.traces.runs.runfolder import RunFolder

DATA = Path(__file__).parents[2] / "evidence" / "runs" / "h200-smollm2-train"
NATURAL = DATA / "natural"
TLT = "goodput-off-2-3-4-6-online"
RUNS = [
    *(
        NATURAL / policy
        for policy in ("none", TLT, "static-4-frozen", "static-4-online", "tlt_chains-online")
    ),
    *(DATA / "forced" / policy for policy in ("none", TLT)),
]


@pytest.mark.parametrize("run", RUNS, ids=name)
def test_the_recorded_decisions_repeat(run: Path) -> None:
    recorded = decisions_repeat(run)
    assert recorded != (run / RECORDS).read_bytes().splitlines(keepends=True)  # which are of version 1


@pytest.mark.parametrize("run", RUNS, ids=name)
def test_every_gpu_second_is_booked(run: Path) -> None:
    every_gpu_second_is_booked(run)


# Accepted tokens a drafting engine step, the bonus token counted, as version 1 gave it for these files.
LENGTHS = {
    TLT: 3.576819,
    "static-4-frozen": 3.087285,
    "static-4-online": 3.211284,
    "tlt_chains-online": 2.577698,
}


@pytest.mark.parametrize("policy", LENGTHS)
def test_files_of_version_1_give_the_figures_that_they_gave(policy: str) -> None:
    folder = RunFolder(NATURAL / policy)
    assert acceptance_length_with_bonus(folder.steps()) == pytest.approx(LENGTHS[policy], abs=1e-6)
    drafted = read_decision_intervals(NATURAL / policy / RECORDS).stretches.query("depth > 0")
    assert acceptance_length_with_bonus(drafted) == pytest.approx(LENGTHS[policy], abs=1e-6)


def test_the_drafter_learned_on_idle_workers_and_was_served() -> None:
    steps = RunFolder(NATURAL / TLT).steps()
    assert steps["trained_tokens"].sum() > 100_000
    assert steps["drafter_version"].iloc[-1] == (steps["trained_tokens"].iloc[:-1] > 0).sum()


def test_its_drift_is_a_preset() -> None:
    curve = load_drift("smollm2-135m-h200")
    assert curve.updates == len(RunFolder(NATURAL / "static-4-online").steps()) - 1


def test_forced_lengths_are_the_same_in_both_policies() -> None:
    keys = ["step", "request", "response_tokens"]
    plain, tlt = (
        RunFolder(DATA / "forced" / policy).responses()[keys].sort_values(keys, ignore_index=True)
        for policy in ("none", TLT)
    )
    assert plain.equals(tlt)
    natural = RunFolder(NATURAL / "none").responses()[keys].sort_values(keys, ignore_index=True)
    assert plain.equals(natural[natural["step"] < 8])


def test_a_trained_head_gains_on_a_frozen_one() -> None:
    """The measured fact that the drift curve and the README speak of."""
    lengths = []
    for policy in ("static-4-frozen", "static-4-online"):
        steps = RunFolder(NATURAL / policy).steps()
        lengths.append((steps["accepted_tokens"] / steps["request_steps"]).to_numpy())
    frozen, online = lengths
    assert (online - frozen)[-10:].min() > 0
