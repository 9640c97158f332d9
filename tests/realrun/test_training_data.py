"""The committed training run on four H200: it can be read, its books close, its decisions repeat."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from sim.drift import load_drift
from tltsched.record import SchedulerSetup, first_difference, read, replay
from traces.runfolder import RunFolder, read_struct
from traces.seeds import scheduler_rng

DATA = Path(__file__).parents[2] / "realrun" / "data" / "h200-smollm2-train"
ARMS = ("none", "tlt_chains-online")


@pytest.mark.parametrize("arm", ARMS)
def test_the_recorded_decisions_repeat(arm: str) -> None:
    records = list(read((DATA / arm / "records.jsonl").read_bytes().splitlines()))
    setup = read_struct(DATA / arm / "scheduler.json", SchedulerSetup)
    assert first_difference(records, replay(setup, records, partial(scheduler_rng, setup.seed))) is None


@pytest.mark.parametrize("arm", ARMS)
def test_every_gpu_second_is_booked(arm: str) -> None:
    run = RunFolder(DATA / arm)
    intervals = run.intervals()
    booked_s = float((intervals["end_s"] - intervals["start_s"]).sum())
    assert booked_s == pytest.approx(run.summary().gpus * run.summary().wall_s)


def test_the_drafter_learned_on_idle_workers_and_was_served() -> None:
    steps = RunFolder(DATA / "tlt_chains-online").steps()
    assert steps["trained_tokens"].sum() > 100_000
    assert steps["drafter_version"].iloc[-1] == (steps["trained_tokens"].iloc[:-1] > 0).sum()


def test_its_drift_is_a_preset() -> None:
    curve = load_drift("smollm2-135m-h200")
    assert curve.updates == len(RunFolder(DATA / "tlt_chains-online").steps()) - 1
