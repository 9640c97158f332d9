"""A run with a known truth, as somebody would observe it: a trace, and the phase times of a log."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tlt.sim.comparison import run_policy
from tlt.sim.config import resolve
from tlt.sim.simulation import Simulation
from tlt.traces.importers.phases import PhaseTime, PhaseTimes
from tlt.traces.lengths.files import write_trace
from tlt.traces.lengths.generate import generate
from tlt.traces.lengths.histogram import from_lengths
from tlt.traces.lengths.schema import Origin, Trace
from tlt.traces.runs.runfolder import RunFolder, write_json

CALIBRATION = "vllm-0.32-h100-qwen2.5-7b"
TRUE_SCALE = 1.3
PHASES_S = {"reward": 0.5, "logprob": 1.0, "policy_update": 2.0, "weight_sync": 0.25}
REST_S = 0.4  # of a step that the log books to nothing
HARDWARE: dict[str, Any] = {"gpus": 2, "tp": 1, "gpu": "H100", "model": "Qwen2.5-7B"}
GIVEN: dict[str, Any] = {"hardware": HARDWARE, "cost": {"source": CALIBRATION}, "run": {"records": False}}


def lengths(steps: int = 6, prompts: int = 8, samples: int = 4) -> Trace:
    """Return log-normal lengths."""
    drawn = np.random.default_rng(7).lognormal(5.0, 0.9, 4000).clip(2, 2000).astype(np.int64)
    origin = Origin(source="made by a test", kind="rollout", max_response_tokens=2000)
    hist = from_lengths(drawn, drawn >= 2000, origin)
    made = generate(hist, steps=steps, prompts_per_step=prompts, samples_per_prompt=samples,
                    prompt_tokens=100, seed=3)  # fmt: skip
    return Trace(made.rows, origin)


def write_observed(folder: Path, trace: Trace) -> tuple[Path, Path]:
    """Simulate the truth; return the trace and the phase times that its log would have."""
    path = folder / "trace.parquet"
    write_trace(trace, path)
    truth = {
        **GIVEN,
        "cost": {"source": CALIBRATION, "scale": TRUE_SCALE},
        "workload": {"lengths": str(path), "replay_steps": True, "steps": int(trace.rows["step"].nunique())},
    }
    simulation = Simulation(resolve(truth, "none"), trace)
    run_policy(simulation, "none", folder / "truth", lambda *_: None)
    rows = RunFolder(folder / "truth").steps()
    times = PhaseTimes(source="a test", framework="verl", steps=sorted(trace.rows["step"].unique().tolist()))
    times.lines = len(rows)
    names = {"step": "timing_s/step", "gen": "timing_s/gen"}
    rollout_s = (rows["rollout_end_s"] - rows["start_s"]).to_numpy()
    seconds = {"gen": rollout_s, "step": rollout_s + sum(PHASES_S.values()) + REST_S}
    seconds |= {name: np.full(len(rows), value) for name, value in PHASES_S.items()}
    for name, values in seconds.items():
        time = times.phases.setdefault(name, _phase_time(names.get(name, name)))  # type: ignore[arg-type]
        for value in values.tolist():
            time.add(value)
    write_json(folder / "phases.json", times)
    return path, folder / "phases.json"


def _phase_time(name: str) -> PhaseTime:

    return PhaseTime(names=(name,))
