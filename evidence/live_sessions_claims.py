"""The record of evidence.live_sessions: `python -m evidence.live_sessions_claims DEVICE OUT`

Every rule and policy is simulated again from the calibration in OUT, and its decisions are replayed.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from evidence.live_sessions import MACHINES
from evidence.recording import OTHERS, write, write_raw
from tlt.analysis.crosscheck.decisions import replay_decisions, run_folders
from tlt.sim.validate.replay_measured import simulate_replay
from tlt.traces.runs.runfolder import RunFolder

AIM, AIM_HITS = 0.05, 0.03
WHERE = {"cpu": "two CPU workers of one thread", "cuda": "one GPU"}


def rows_of(folder: Path, calibration: Path, rule: str) -> list[dict[str, Any]]:
    """Return a row a policy of a replay: seconds, prefix-cache hits, and whether the decisions replay."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place:
        simulated = Path(place) / "simulated"
        simulate_replay(folder, calibration, simulated)
        for run in run_folders(folder):
            row: dict[str, Any] = {"rule": rule, "policy": RunFolder(run).summary().policy}
            for world, path in (("measured", run), ("simulated", simulated / run.name)):
                told, steps = RunFolder(path).sessions(), RunFolder(path).steps()
                assert told is not None
                row[f"{world}_s"] = float((steps["rollout_end_s"] - steps["start_s"]).sum())
                row[f"{world}_hits"] = told[0].hit_share
            row["decisions_replay"] = replay_decisions(run).difference is None
            rows.append(row)
    return rows


def main() -> None:
    """Write the record."""
    device, out = sys.argv[1], Path(sys.argv[2])
    machine = MACHINES[device]
    rows = [row for rule in machine.rules for row in rows_of(out / rule, out / "calibration.json", rule)]
    by_rule = {rule: [row for row in rows if row["rule"] == rule] for rule in machine.rules}
    makespan = max(abs(row["simulated_s"] / row["measured_s"] - 1) for row in rows)
    hits = max(abs(row["simulated_hits"] - row["measured_hits"]) for row in rows)
    gains = [
        (plain["simulated_s"] / draft["simulated_s"]) / (plain["measured_s"] / draft["measured_s"]) - 1
        for plain, draft in by_rule.values()
    ]
    orders = [
        [sorted(machine.rules, key=lambda rule: by_rule[rule][index][f"{world}_s"]) for world in
         ("measured", "simulated")]
        for index in range(2)
    ]  # fmt: skip
    ranked = all(measured == simulated for measured, simulated in orders)
    alike = all(row["decisions_replay"] for row in rows)
    gain = max(abs(each) for each in gains)
    value = {
        "largest makespan error": round(makespan, 4),
        "largest difference of prefix-cache hits": round(hits, 4),
        "largest error of the gain of speculation": round(gain, 4),
        "decisions replay": float(alike),
    }
    if len(machine.rules) > 1:
        value["rules ranked right"] = float(ranked)
    write(
        f"live_sessions_{device}",
        timed=True,
        claim=f"sessions of 3 to 8 turns with sleeping tools on live engines against their simulation; "
        f"{machine.model}, {WHERE[device]}, vLLM 0.32",
        value=value,
        unit={OTHERS: "share", "decisions replay": "1: yes"}
        | ({"rules ranked right": "1: yes"} if len(machine.rules) > 1 else {}),
        target="makespan within 5 %, prefix-cache hits within 3 points, gain of speculation within 5 %, "
        "routing rules ranked right under both policies",
        met=makespan <= AIM and hits <= AIM_HITS and gain <= AIM and ranked and alike,
        how="modelled against measured; calibrated in the same run; forced lengths, waits drawn from an "
        "exponential law, synthetic acceptance",
        measured_on=f"{WHERE[device]}, vLLM 0.32.0",
        command=f"python -m evidence.live_sessions {device} OUT && "
        f"python -m evidence.live_sessions_claims {device} OUT",
        raw=write_raw(f"live_sessions_{device}.points.jsonl", rows),
    )


if __name__ == "__main__":
    main()
