"""The page of regimes (docs/regimes.md): what was predicted and measured, kind of run by kind of run.

Every row comes out of a record; one whose record is missing, or says nothing of it, is not measured.
"""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from evidence.recording import Evidence, load_all, value_of
from evidence.regimes import MACHINES, Machine, uncached
from evidence.subjects import percent
from tlt.analysis.drawing.tables import markdown_rows

NOT_MEASURED = "not measured"
# What has rows of its own; `cuda-tp1` is what two GPUs are held against.
DEVICES = {"cuda": "one GPU", "cuda-tp2": "two GPUs, TP 2", "cpu": "CPU"}
HTTP = "the first through the HTTP interface of `vllm serve`"
SESSION = "calibration of another session"
WITHOUT_CACHE = ", no prefix caching"
SPREAD = "the same lengths again: spread"
HEADERS = (
    "Regime", "Makespan error", "Speedup error", "Spread of repeats", "Lost by following it", "Device",
    "Date", "Record",
)  # fmt: skip


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A regime, and the figures of a record that speak of it (patterns; the largest counts)."""

    regime: str
    record: str = ""  # "": no record is made of it
    makespan: str = "largest makespan error"
    speedup: str = "largest speedup error"
    spread: str = SPREAD
    regret: str = "regret"


FIRST = (
    Line(regime="all prompts at once, chains, contexts to 8k", record="crosscheck_h100"),
    Line(regime="a queue of half the batch", record="crosscheck_h200", makespan="*: makespan"),
    Line(regime="all prompts at once, on CPU", record="crosscheck_cpu"),
)
LAST = (
    Line(regime="a server under vLLM's own benchmark, on CPU", record="vllm_bench",
         makespan="error of the makespan"),
    Line(regime="natural responses, a trained drafter", record="acceptance_predicted",
         makespan="kind of prompt, *", spread="*, sd over draws"),
    Line(regime="whole RL steps, drafter training beside decoding", record="training_predicted",
         makespan="whole step, *"),
    Line(regime="speculation added to a logged RL run", record="counterfactual_h200",
         makespan="error of the reproduced step seconds", speedup="largest error of a speedup"),
    Line(regime="drafts in trees, drafts out of history"),
    Line(regime="schedules other than the synchronous one, on CPU", record="live_schedules",
         makespan="largest error of seconds a trained token"),
    Line(regime="sessions of turns whose tools sleep, on CPU", record="live_sessions_cpu",
         speedup="largest error of the gain of speculation"),
    Line(regime="sessions of turns whose tools sleep, one GPU", record="live_sessions_cuda",
         speedup="largest error of the gain of speculation"),
    Line(regime="natural responses of a 135M model, one GPU whose host was uneven",
         record="natural_predicted_cuda", makespan="kind of prompt, *"),
    Line(regime="mixtures of experts, weights or caches below 16 bits"),
)  # fmt: skip


def lines() -> tuple[Line, ...]:
    """Return all regimes, those of `evidence.regimes` on both devices among them."""
    devices = [line for name in DEVICES for line in _of(MACHINES[name], name)]
    return (*FIRST, *devices, *LAST)


def record_of(device: str) -> str:
    """Return the record of a device of `evidence.regimes`."""
    return f"regimes_{device.replace('-', '_')}"


def _of(machine: Machine, device: str) -> tuple[Line, ...]:
    words, record = DEVICES[device], record_of(device)
    cached = (regime.name for regime in machine.regimes)
    names = (*cached, *(regime.name + WITHOUT_CACHE for regime in uncached(machine).regimes), HTTP, SESSION)
    return tuple(
        Line(
            regime=f"{name}, {words}", record=record, makespan=f"{name}: makespan",
            speedup=f"{name}: speedup", regret=f"{name}: regret",
        )
        for name in names
    )  # fmt: skip


def page(folder: Path) -> str:
    """Return the tables of the page from the records of a folder."""
    records = load_all(folder)
    told = [_row(line, records.get(line.record)) for line in lines()]
    parts = [markdown_rows(HEADERS, told)]
    for name, record in records.items():
        if name.startswith("regimes_") and record.raw:
            parts += [f"Each rollout of [{name}](evidence/README.md#{name}), {record.measured_on}:",
                      _rollouts(folder / record.raw)]  # fmt: skip
    return "\n\n".join(parts)


def _row(line: Line, record: Evidence | None) -> tuple[str, ...]:
    makespan = _largest(record, line.makespan)
    if record is None or makespan is None:
        return (line.regime, NOT_MEASURED, *["-"] * (len(HEADERS) - 2))
    figures = (_largest(record, each) for each in (line.speedup, line.spread, line.regret))
    speedup, spread, regret = ("-" if each is None else percent(each) for each in figures)
    return (
        line.regime, percent(makespan), speedup, spread, regret, record.measured_on, record.date.isoformat(),
        f"[{record.id}](evidence/README.md#{record.id})",
    )  # fmt: skip


def _largest(record: Evidence | None, pattern: str) -> float | None:
    """Return the figure of that name, of several the one furthest from 0; None: there is none."""
    found = [] if record is None else [
        value_of(value)
        for name, value in record.value.items()
        if name == pattern or fnmatchcase(name, pattern)
    ]  # fmt: skip
    return max(found, key=abs, default=None)


def _rollouts(path: Path) -> str:
    """Return what was measured and what was predicted of every rollout."""
    rows: list[dict[str, Any]] = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    cells = [
        (
            row["regime"], row["policy"], row["calibration"], f"{row['measured_s']:.1f}",
            f"{row['simulated_s']:.1f}", percent(row["simulated_s"] / row["measured_s"] - 1.0),
            "-" if row["speedup_error"] is None else percent(row["speedup_error"]),
        )
        for row in rows
    ]  # fmt: skip
    headers = ("Regime", "Policy", "Calibration", "Measured (s)", "Predicted (s)", "Error", "Speedup error")
    return markdown_rows(headers, cells)
