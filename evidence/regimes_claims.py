"""The record of evidence.regimes: `python -m evidence.regimes_claims FOLDER [OTHER_CALIBRATION]`

FOLDER is what `python -m evidence.regimes` left. Every rollout is simulated with the calibration of the same
folder, and with OTHER_CALIBRATION, of another session, as a row of its own; where the folder has none, with
the first of those alone. FOLDER/uncached is the same without prefix caching, if it is there. A rollout that
found the prompts of another policy in the cache, as replays once let it, is left out. Writes
regimes_DEVICE.json, a table and the points.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from evidence.recording import HERE, OTHERS, refuse_losses, write, write_raw
from evidence.regimes import UNCACHED, Machine, names_of
from evidence.regimes_page import SESSION, WITHOUT_CACHE
from tlt.analysis.drawing.tables import markdown_rows
from tlt.sim.config import resolve
from tlt.sim.simulation import Simulation
from tlt.sim.steptimes.calibration import load
from tlt.sim.validate.replay_measured import simulate_replay
from tlt.traces.common.arrays import Floats
from tlt.traces.lengths.files import read_trace
from tlt.traces.lengths.schema import Trace
from tlt.traces.runs.engine_steps import read_engine_steps
from tlt.traces.runs.runfolder import Comparison, RunFolder, read_struct

AIM_S, AIM_SPEEDUP = 0.03, 0.02
LEAST_PREFILLED = 0.97  # of the prompts of a rollout, each once: less, and some were in a cache before


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout of one policy."""

    regime: str
    policy: str
    calibration: str
    measured_s: float
    simulated_s: float
    speedup_error: float | None  # over the first policy; None: it is that
    preemptions: tuple[int, int] | None  # measured, simulated, of the whole run

    @property
    def error(self) -> float:
        """Simulated over measured, less one."""
        return self.simulated_s / self.measured_s - 1.0


def rollout_s(folder: Path) -> Floats:
    """Return the seconds of each rollout of a run, [rollouts]."""
    steps = RunFolder(folder).steps()
    return (steps["rollout_end_s"] - steps["start_s"]).to_numpy()


def began_empty(replay: Path, run: str) -> list[bool]:
    """Return for each rollout of a run whether its engine prefilled every prompt, once or more often."""
    rows = read_trace(replay / "lengths.parquet").rows.drop_duplicates(["step", "prompt_id"])
    prompts: dict[Any, int] = rows.groupby("step")["prompt_tokens"].sum().to_dict()
    engine_steps = read_engine_steps(replay / run)
    assert engine_steps is not None
    prefilled: dict[Any, int] = engine_steps.groupby("step")["prompt_tokens"].sum().to_dict()
    return [prefilled[step] >= LEAST_PREFILLED * prompts[step] for step in sorted(prefilled)]


def rows_of(replay: Path, names: tuple[str, ...], calibration: Path) -> list[Row]:
    """Simulate a replay with a calibration; returns a row for each rollout and policy that began empty."""
    runs = read_struct(replay / "comparison.json", Comparison).runs
    refuse_losses(replay / run for run in runs)
    with tempfile.TemporaryDirectory() as place:
        simulate_replay(replay, calibration, Path(place))
        measured = {run: rollout_s(replay / run) for run in runs}
        empty = {run: began_empty(replay, run) for run in runs}
        simulated = {run: rollout_s(Path(place) / run) for run in runs}
        preempted = {
            run: (RunFolder(replay / run).summary().preemptions or 0,
                  RunFolder(Path(place) / run).summary().preemptions or 0) for run in runs
        }  # fmt: skip
    rows = []
    for number, regime in enumerate(names[: len(measured[runs[0]])]):
        for run in (run for run in runs if number < len(measured[run]) and empty[run][number]):
            was, now = measured[run][number], simulated[run][number]
            gain = (simulated[runs[0]][number] / now) / (measured[runs[0]][number] / was) - 1.0
            rows.append(
                Row(
                    regime=regime, policy=run, calibration=calibration.name, measured_s=round(float(was), 3),
                    simulated_s=round(float(now), 3),
                    speedup_error=None if run == runs[0] else round(float(gain), 4),
                    preemptions=preempted[run],
                )
            )  # fmt: skip
    return rows


def served_row(folder: Path, machine: Machine, calibration: Path) -> Row | None:
    """Return the rollout through HTTP against a simulation of the first rollout; None: it was not served."""
    if not (folder / "served.json").is_file():
        return None
    served = json.loads((folder / "served.json").read_text(encoding="utf-8"))
    trace = read_trace(folder / "lengths.parquet")
    first = Trace(trace.rows[trace.rows["step"] == 0].reset_index(drop=True), trace.origin)
    law = load(str(calibration))
    settings = {
        "hardware": {"gpus": law.tp, "tp": law.tp, "model": machine.model, "gpu": "H200"},
        "cost": {"source": str(calibration)}, "cluster": {"phases": []},
        "engine": {"max_running": served["max_running"], "chunk_tokens": int(law.chunk_tokens),
                   "graph_bytes": 0.0},
    }  # fmt: skip
    cluster = Simulation(resolve(settings, "none"), first).run()
    return Row(
        regime="the first through the HTTP interface of `vllm serve`", policy="none",
        calibration=calibration.name,
        measured_s=float(np.median([each["makespan_s"] for each in served["rounds"]])),
        simulated_s=round(float(cluster.env.now), 3), speedup_error=None, preemptions=None,
    )  # fmt: skip


def repeat_spread(rows: list[Row], repeated: str) -> float | None:
    """Return by how much the two rollouts of equal lengths differ at most, as a share; None: there is one."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.regime.startswith(repeated) and row.regime.removeprefix(repeated) in ("", ", again"):
            found.setdefault(row.policy, []).append(row.measured_s)
    spreads = [max(each) / min(each) - 1.0 for each in found.values() if len(each) > 1]
    return max(spreads) if spreads else None


def ranked_right(rows: list[Row], regime: str) -> tuple[bool, float]:
    """Return whether the policies come in the measured order, and the time lost by following the model."""
    of = [row for row in rows if row.regime == regime]
    measured = sorted(of, key=lambda row: row.measured_s)
    simulated = sorted(of, key=lambda row: row.simulated_s)
    same = [row.policy for row in measured] == [row.policy for row in simulated]
    return same, simulated[0].measured_s / measured[0].measured_s - 1.0


def main(folder: Path, others: list[Path]) -> None:
    """Simulate, and write the record."""
    machine = read_struct(folder / "machine.json", Machine)
    device, tp = machine.settings["engine.device"], machine.settings.get("workers.tp", 1)
    names = names_of(machine)
    own, calibrated = folder / "calibration.json", "calibrated in processes of its own before"
    if not own.is_file() and others:
        own, *others = others
        calibrated = "calibrated before on another machine of the kind"
    rows = rows_of(folder / "replay", names, own)
    served = served_row(folder, machine, own)
    rows += [] if served is None else [served]
    if (folder / UNCACHED / "replay" / "comparison.json").is_file():
        without = names_of(read_struct(folder / UNCACHED / "machine.json", Machine))
        without = tuple(name + WITHOUT_CACHE for name in without)
        rows += rows_of(folder / UNCACHED / "replay", without, own)
    elsewhere = [row for other in others for row in rows_of(folder / "replay", names, other)]
    law = load(str(own))
    values, cells = {}, []
    for regime in dict.fromkeys(row.regime for row in rows):
        of = [row for row in rows if row.regime == regime]
        values[f"{regime}: makespan"] = max((row.error for row in of), key=abs)
        values[f"{regime}: speedup"] = max((row.speedup_error or 0.0 for row in of), key=abs)
        if len(of) > 1:
            right, regret = ranked_right(rows, regime)
            values[f"{regime}: regret"] = regret
        cells += [_cells(row, right if len(of) > 1 else None) for row in of]
    if elsewhere:
        values[f"{SESSION}: makespan"] = max((row.error for row in elsewhere), key=abs)
        values[f"{SESSION}: speedup"] = max((row.speedup_error or 0.0 for row in elsewhere), key=abs)
    spread = repeat_spread(rows, machine.repeated)
    if spread is not None:
        values["the same lengths again: spread"] = spread
    headers = ("Regime", "Policy", "Measured (s)", "Simulated (s)", "Error", "Speedup error", "Order")
    name = f"regimes_{device}" if tp == 1 else f"regimes_{device}_tp{tp}"
    table = markdown_rows(headers, cells) + "\n"
    (HERE / f"{name}.md").write_text(table, encoding="utf-8")
    makespans = [abs(row.error) for row in rows]
    gains = [abs(row.speedup_error or 0.0) for row in rows]
    write(
        name,
        claim="regimes that the cross-check leaves out, on stock graphs with prefix caching: queues of four "
        f"times the batch{', small KV cache, long contexts, HTTP' if tp == 1 else ''}; {machine.model} "
        f"shape, TP {tp}",
        value={key: round(value, 4) for key, value in values.items()},
        unit={OTHERS: "share"},
        target=f"makespan within {AIM_S:.0%} and speedup within {AIM_SPEEDUP:.0%} in every regime",
        met=max(makespans) <= AIM_S and max(gains) <= AIM_SPEEDUP,
        how="modelled against measured, the largest error over policies with its sign; "
        f"{calibrated}; forced lengths, synthetic acceptance, random weights"
        + _left_out(folder / "replay", names),
        measured_on=f"{law.device}, vLLM {law.engine_version}",
        command=f"python -m evidence.regimes {device}{f'-tp{tp}' if tp > 1 else ''} FOLDER && "
        "python -m evidence.regimes_claims FOLDER",
        raw=write_raw(f"{name}.points.jsonl", [msgspec.to_builtins(row) for row in (*rows, *elsewhere)]),
    )
    print(table)


def _left_out(replay: Path, names: tuple[str, ...]) -> str:
    runs = read_struct(replay / "comparison.json", Comparison).runs
    found = [
        f"{run} in {name}"
        for run in runs
        for name, empty in zip(names, began_empty(replay, run), strict=False)
        if not empty
    ]
    words = "; left out, since the engine still had prompts of another policy in its cache: "
    cut = [f"{run} in {name}" for run in runs for name in names[len(began_empty(replay, run)) :]]
    left_out = words + ", ".join(found) if found else ""
    return left_out + ("; not run in the time that there was: " + ", ".join(cut) if cut else "")


def _cells(row: Row, right: bool | None) -> tuple[str, ...]:
    gain = "-" if row.speedup_error is None else f"{row.speedup_error:+.1%}"
    order = "-" if right is None else ("right" if right else "wrong")
    return (row.regime, row.policy, f"{row.measured_s:.1f}", f"{row.simulated_s:.1f}", f"{row.error:+.1%}",
            gain, order)  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), [Path(other) for other in sys.argv[2:]])
