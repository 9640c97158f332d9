"""What simulating a measured run again leaves beside the simulated run folders, for the cross-check.

A simulated comparison that was made so holds simulated_replay.json (SimulatedReplay), and each run folder in
it predicted_engine_steps.parquet (PREDICTED_COLUMNS): the measured engine steps with what the law predicts
for each.
"""

from __future__ import annotations

import msgspec

from tlt.traces.results.predicted_training import Figure

SIMULATED_REPLAY = "simulated_replay.json"
PREDICTED = "predicted_engine_steps.parquet"
PREDICTED_COLUMNS = {
    "step": "int32",
    "worker": "int16",
    "t_s": "float64",
    "seconds": "float64",  # measured
    "predicted_s": "float64",  # by the law, for the same batch, context and K
    "batch": "int32",
    "context_tokens": "int64",  # of all requests together
    "k": "int16",
    "steady": "bool",  # decode alone, and as many verified as `k` drafts: what the law speaks of
    "compiled": "bool",  # the measured time means nothing
}


class CalibratedRange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the points of a calibration cover."""

    batch: tuple[int, int]
    draft_batch: tuple[int, int]
    context_tokens: tuple[float, float]  # mean of one request
    held_tokens: float  # most of a whole batch


class SimulatedPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One policy, by the name of its run folder."""

    run: str
    same_placement: bool  # every request ran on the worker that it was simulated on
    break_even_length: (
        float | None
    )  # accepted, with bonus, at which its drafting engine steps pay; None: none


SAMPLER_LEFT_OUT = (
    "the run's sampler compared distributions over the vocabulary, the calibration accepted drafts at given "
    "rates: steps that draft take longer than it says; calibrate without drafter.synthetic_survival"
)


class SimulatedReplay(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the simulation rests on."""

    calibration: str
    engine: str
    engine_version: str
    device: str
    date: str
    step_time_error: float  # mean of the law on points that its fit did not see, as a share
    calibrated: CalibratedRange
    acceptance_source: str
    acceptance_steps: tuple[int, ...]  # rollouts that acceptance was measured on: not to be judged by
    acceptance_parameters: dict[str, Figure] = {}  # of how requests differ, by field of acceptance.*
    alike_because: str = ""  # why they are taken to be alike, where that is so
    sampler_left_out: bool = False  # the run's sampler compared distributions, the calibration's did not
    policies: tuple[SimulatedPolicy, ...]
