"""Claims that rest on runs of the live engine; the runs are committed, so these need no engine."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

import msgspec

from evidence.recording import HERE, OTHERS, RUNS, tlt, write, write_raw
from tlt.analysis.drawing.tables import markdown_rows
from tlt.sim.steptimes.calibration import load

RANKING = "rank correlation (Kendall's tau)"
CROSSCHECK_UNITS = {OTHERS: "share", RANKING: ""}


def crosscheck_h100() -> None:
    """The simulator against the committed H100 run, from a calibration made before it."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "replay"
        shutil.copytree(RUNS / "h100-qwen2.5-7b" / "replay", run)
        tlt("report", "crosscheck", str(run), "--calibration", "vllm-0.32-h100-qwen2.5-7b")
        report = msgspec.json.decode((run / "crosscheck.json").read_bytes())
    rows = _policy_rows(report)
    headers = ("Policy", "Measured (s)", "Simulated (s)", "Error", "Speedup measured", "simulated", "Error ")
    cells = [
        (
            row["policy"],
            *(f"{row[key]:.1f}" for key in ("measured_s", "simulated_s")),
            f"{row['makespan_error']:+.1%}",
            *(f"{row[key]:.2f}x" for key in ("measured_speedup", "simulated_speedup")),
            f"{row['speedup_error']:+.1%}",
        )
        for row in rows
    ]
    (HERE / "crosscheck_h100.md").write_text(markdown_rows(headers, cells) + "\n", encoding="utf-8")
    worst = max(abs(row["makespan_error"]) for row in rows)
    worst_speedup = max(abs(row["speedup_error"]) for row in rows)
    write(
        "crosscheck_h100",
        claim="simulated against measured: six policies on two H100, vLLM 0.32, Qwen2.5-7B shape, 2 x 256 "
        "responses of DeepSeek-R1 lengths",
        value={
            "largest makespan error": worst,
            "largest speedup error": worst_speedup,
            "regret": report["regret"]["value"],
            RANKING: report["order"]["value"],
        },
        unit=CROSSCHECK_UNITS,
        target="makespan and speedup within 5 %, regret at most 2 %, ranking right",
        met=max(worst, worst_speedup) <= 0.05 and report["regret"]["value"] <= 0.02,
        how="modelled against measured (2026-11-28); calibration measured before it in a process of its own; "
        "synthetic acceptance, forced lengths",
        measured_on="2 x H100 80 GB, one worker each, vLLM 0.32.0",
        raw=write_raw("crosscheck_h100.points.jsonl", rows),
    )


def _policy_rows(report: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row a policy of a crosscheck.json."""
    return [
        {
            "policy": policy["policy"],
            "measured_s": round(policy["measured_s"], 2),
            "simulated_s": round(policy["simulated_s"], 2),
            "makespan_error": round(policy["makespan_error"]["value"], 4),
            "makespan_error_interval": policy["makespan_error"]["interval"],
            "measured_speedup": round(policy["measured_speedup"]["value"], 3),
            "simulated_speedup": round(policy["simulated_speedup"]["value"], 3),
            "speedup_error": round(policy["speedup_error"]["value"], 4),
        }
        for policy in report["policies"]
    ]


def crosscheck_cpu() -> None:
    """The simulator against what `make validate` has just left in out/cpu/replay."""
    report = msgspec.json.decode((Path("out/cpu/replay") / "crosscheck.json").read_bytes())
    rows = _policy_rows(report)
    worst = max(abs(row["makespan_error"]) for row in rows)
    fastest, second = sorted(row["measured_s"] for row in rows)[:2]
    write(
        "crosscheck_cpu",
        timed=True,
        claim="simulated against measured: five policies, SmolLM2-135M, two CPU workers of one thread, "
        "vLLM 0.32, 5 x 16 responses of at most 256 tokens",
        value={
            "largest makespan error": worst,
            "largest speedup error": max(abs(row["speedup_error"]) for row in rows),
            "regret": round(report["regret"]["value"], 4),
            RANKING: report["order"]["value"],
            "second fastest over fastest": round(second / fastest, 3),
        },
        unit=CROSSCHECK_UNITS | {"second fastest over fastest": "x"},
        target="makespan within 5 %, ranking right",
        met=worst <= 0.05 and report["order"]["value"] == 1.0,
        how="modelled against measured; calibrated in a separate run beside a decoding neighbour, which the "
        "memory bandwidth is shared with; the four speculating policies lie too close to rank",
        measured_on="two CPU workers of one thread, vLLM 0.32.0",
        command="make validate && python -m evidence.measure crosscheck_cpu",
        raw=write_raw("crosscheck_cpu.points.jsonl", rows),
    )


def k0_tax() -> None:
    """What K = 0 costs over an engine without speculation, at the measured batches."""
    calibration = load("vllm-0.32-h100-qwen2.5-7b")
    cells: dict[tuple[int, float], dict[str, float]] = {}
    for point in calibration.points:
        if not point.draft_config.depth:
            context = 1000.0 * round(point.context_tokens / 1000)
            cells.setdefault((point.batch, context), {})[point.when_off] = point.engine_step_s
    taxes = {
        batch: cell["k0"] / cell["not_configured"] - 1
        for (batch, context), cell in sorted(cells.items())
        if context == 0 and {"not_configured", "k0"} <= set(cell)
    }
    write(
        "k0_tax",
        claim="K = 0 on vLLM 0.32 against no speculation configured, one H100, 7B shape, short contexts",
        value={f"batch {batch}": round(tax, 4) for batch, tax in taxes.items()},
        unit={OTHERS: "share of the plain step"},
        target="at most 3 % at every batch",
        met=max(taxes.values()) <= 0.03,
        measured_on="one H100 80 GB, vLLM 0.32.0",
        how="measured, median of 5 repeats; vLLM runs the drafter's first pass to keep its KV in step",
    )
