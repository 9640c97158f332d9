"""What stops or qualifies a conclusion from a cross-check."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from tlt.analysis.crosscheck.engine_steps import load_engine_steps
from tlt.analysis.load import Run
from tlt.traces.catalogue.gpus import same_device
from tlt.traces.common.arrays import Ints
from tlt.traces.common.intervals import few_words
from tlt.traces.lengths.run_as_trace import by_request
from tlt.traces.results.simulated_replay import SAMPLER_LEFT_OUT, SimulatedReplay
from tlt.traces.runs.acceptance import acceptance_length_with_bonus, every_draft_accepted
from tlt.traces.runs.engine_steps import read_engine_steps
from tlt.traces.runs.records import lost_a_worker
from tlt.traces.runs.runfolder import read_struct

FEW_ROLLOUTS = 5
SHARE_THAT_COUNTS = 0.01  # of measured time
SLACK = 1.01  # of a calibrated range: contexts within one percent of its end are inside


class Flag(msgspec.Struct, frozen=True):
    """A reason for caution; one that stops forbids any conclusion."""

    name: str
    text: str
    stops: bool


def find_flags(
    measured: tuple[Run, ...],
    simulated: tuple[Run, ...],
    basis: SimulatedReplay,
    steps: Ints,
) -> tuple[Flag, ...]:
    """Return the flags, those that stop first."""
    flags = [
        *_lengths(measured, simulated),
        *_engine(measured, basis),
        *_rollouts(measured, basis, steps),
    ]
    for real, model in zip(measured, simulated, strict=True):
        flags += [*_workers(real, model, basis), *_acceptance(real, model, basis, steps)]
        flags += _engine_steps(real, model, basis, steps)
    return tuple(sorted(flags, key=lambda flag: not flag.stops))


def _lengths(measured: tuple[Run, ...], simulated: tuple[Run, ...]) -> list[Flag]:
    """Flag other lengths where each step trains on its own requests; who chooses trains on others."""
    columns = ("step", "request", "prompt_tokens", "response_tokens")
    alike = [run for run in (*measured, *simulated) if run.schedule is None or run.schedule[0].keeps_order]
    if not alike:
        return []
    reference = by_request(alike[0].responses, *columns)
    return [
        Flag("lengths", f"{run.summary.kind} {run.policy} has other lengths than {alike[0].policy}", True)
        for run in alike[1:]
        if not by_request(run.responses, *columns).equals(reference)
    ]


def _engine(measured: tuple[Run, ...], basis: SimulatedReplay) -> list[Flag]:
    """Return what differs from the calibration: one flag a difference, with the policies that have it."""
    policies: dict[tuple[str, str, bool], list[str]] = {}
    calibrated = f"{basis.engine} {basis.engine_version}"
    for run in measured:
        engine = _engine_json(run)
        if engine is None:
            policies.setdefault(("engine", "not known which engine it ran on", False), []).append(run.policy)
            continue
        ran = f"{engine.get('engine')} {engine.get('engine_version')}"
        if ran != calibrated:
            text = f"ran on {ran}, the calibration is of {calibrated}"
            policies.setdefault(("engine", text, True), []).append(run.policy)
        device = str(engine.get("device"))
        if not same_device(device, basis.device):
            text = f"ran on {device}, the calibration is of {basis.device}"
            policies.setdefault(("device", text, True), []).append(run.policy)
    return [
        Flag(name, f"{', '.join(named)}: {text}", stops) for (name, text, stops), named in policies.items()
    ]


def _engine_json(run: Run) -> dict[str, Any] | None:
    path = run.path / "engine.json"
    return read_struct(path, dict[str, Any]) if path.is_file() else None


def _rollouts(measured: tuple[Run, ...], basis: SimulatedReplay, steps: Ints) -> list[Flag]:
    flags = [Flag("sampler", SAMPLER_LEFT_OUT, False)] if basis.sampler_left_out else []
    if len(steps) < FEW_ROLLOUTS:
        flags.append(Flag("rollouts", few_words(len(steps), "rollout"), False))
    if np.isin(steps, basis.acceptance_steps).any():
        text = "acceptance was measured on the rollouts that are judged: no prediction, but a description"
        flags.append(Flag("acceptance", text, False))
    if len({run.summary.steps for run in measured}) > 1:
        flags.append(Flag("rollouts", "the policies have different numbers of rollouts", True))
    return flags


def _workers(real: Run, model: Run, basis: SimulatedReplay) -> list[Flag]:
    if lost_a_worker(real.path):
        text = f"{real.policy} lost a worker: what it had generated was generated again elsewhere"
        return [Flag("workers", text, True)]
    predicted = next(policy for policy in basis.policies if policy.run == model.path.name)
    if not predicted.same_placement:
        text = f"{real.policy}: requests ran on other workers than in the simulation"
        return [Flag("placement", text, True)]
    return []


def _acceptance(real: Run, model: Run, basis: SimulatedReplay, steps: Ints) -> list[Flag]:
    rows = real.steps[real.steps["step"].isin(steps)]
    length = acceptance_length_with_bonus(rows)
    if length is None:
        return []
    predicted = next(policy for policy in basis.policies if policy.run == model.path.name)
    if int(rows["accepted_tokens"].sum()) == 0:
        text = f"{real.policy}: no draft was accepted, so its time says nothing about speculation that works"
        return [Flag("acceptance", text, False)]
    if _all_accepted(real, steps):
        text = f"{real.policy}: every draft was accepted, which no drafter achieves: nothing was verified"
        return [Flag("acceptance", text, True)]
    if predicted.break_even_length is not None and length < predicted.break_even_length:
        text = (
            f"{real.policy}: acceptance length {length:.2f} is below the break-even of "
            f"{predicted.break_even_length:.2f} (with bonus) at its batches: a loss was to be expected"
        )
        return [Flag("acceptance", text, False)]
    return []


def _all_accepted(real: Run, steps: Ints) -> bool:
    rows = read_engine_steps(real.path, "step", "drafted_tokens", "accepted_tokens")
    return rows is not None and every_draft_accepted(rows[rows["step"].isin(steps)])


def _engine_steps(real: Run, model: Run, basis: SimulatedReplay, steps: Ints) -> list[Flag]:
    engine_steps = load_engine_steps(model.path, steps)
    if engine_steps is None or not engine_steps["seconds"].sum():
        return [
            Flag(
                "engine_steps",
                f"{real.policy} has no record of single engine steps: step times are not checked",
                False,
            )
        ]
    seconds, batch = engine_steps["seconds"], engine_steps["batch"]
    context = engine_steps["context_tokens"] / batch.clip(lower=1)
    limits = basis.calibrated
    beyond = {
        f"batches above {limits.batch[1]}": batch > limits.batch[1],
        f"batches above {limits.draft_batch[1]} while drafting": (engine_steps["k"] > 0)
        & (batch > limits.draft_batch[1]),
        f"contexts above {limits.context_tokens[1]:,.0f} tokens": context > limits.context_tokens[1] * SLACK,
        f"more than {limits.held_tokens:,.0f} tokens in the cache": engine_steps["context_tokens"]
        > limits.held_tokens * SLACK,
    }
    shares = {where: float(seconds[outside].sum() / seconds.sum()) for where, outside in beyond.items()}
    flags = [
        Flag("range", f"{real.policy}: {share:.1%} of its time is outside the calibration ({where})", False)
        for where, share in shares.items()
        if share > SHARE_THAT_COUNTS
    ]
    compiled_s = float(seconds[engine_steps["compiled"]].sum())
    if compiled_s:
        count = int(engine_steps["compiled"].sum())
        text = f"{real.policy}: something was compiled inside {count} timed engine steps ({compiled_s:.2f} s)"
        flags.append(Flag("compiled", text, compiled_s > SHARE_THAT_COUNTS * float(seconds.sum())))
    return flags
