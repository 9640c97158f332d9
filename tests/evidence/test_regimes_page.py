"""The page of regimes follows the records, and a simulation says what lies outside of all of them."""

from __future__ import annotations

import datetime
from pathlib import Path

import msgspec

from evidence.recording import HERE, Evidence, load_all, value_of
from evidence.regimes_page import NOT_MEASURED, lines, page
from tests.sim.test_run_warnings import said
from tlt.sim.regimes import MOST_HELD_TP, OFF_AT_TP_2, REGIMES
from tlt.traces.runs.runfolder import write_json

UNHELD = "no live engine was held against"


def regimes_record(folder: Path) -> None:
    row = {"regime": "KV cache too small", "policy": "static:4", "calibration": "c.json", "measured_s": 10.0,
           "simulated_s": 9.0, "speedup_error": None, "preemptions": [3, 4]}  # fmt: skip
    (folder / "regimes_cuda.points.jsonl").write_bytes(msgspec.json.encode(row) + b"\n")
    write_json(
        folder / "regimes_cuda.json",
        Evidence(
            id="regimes_cuda", claim="c", unit={"*": "share"}, target="t", met=False, how="measured",
            command="x",
            value={"KV cache too small: makespan": -0.1, "KV cache too small: speedup": 0.02,
                   "the same lengths again: spread": 0.01},
            measured_on="one H200", device="d", versions={}, date=datetime.date(2026, 1, 2),
            raw="regimes_cuda.points.jsonl",
        ),
    )  # fmt: skip


def test_a_regime_is_told_from_its_record_and_else_not_measured(tmp_path: Path) -> None:
    assert page(tmp_path).count(NOT_MEASURED) == len(lines())
    regimes_record(tmp_path)
    told = page(tmp_path)
    (row,) = [line for line in told.splitlines() if line.startswith("| KV cache too small, one GPU ")]
    assert [cell.strip() for cell in row.split("|")[2:8]] == [
        "-10.0 %", "2.0 %", "1.0 %", "-", "one H200", "2026-01-02"
    ]  # fmt: skip
    assert told.count(NOT_MEASURED) == len(lines()) - 1
    assert "| KV cache too small | static:4" in told, "each rollout is told, too"


def test_no_regime_counts_as_held_that_no_record_speaks_of() -> None:
    records = load_all(HERE)
    shown = {line.regime: line for line in lines()}
    of = {
        "long contexts": "contexts of 16k to 32k, one GPU",
        "a small KV cache": "KV cache too small, one GPU",
        "tensor parallelism": "queue, prompts of 512, two GPUs, TP 2",
    }
    assert MOST_HELD_TP == 2
    assert shown[of["tensor parallelism"]].makespan in records["regimes_cuda_tp2"].value
    for regime in REGIMES:
        if regime.held:
            line = shown[of[regime.name]]
            assert line.makespan in records[line.record].value, regime.name


def test_what_is_said_of_two_gpus_is_what_their_record_says() -> None:
    value = load_all(HERE)["two_gpus_replay"].value
    off = [abs(value_of(share)) for name, share in value.items() if name.endswith(": makespan")]
    assert max(off) <= OFF_AT_TP_2 < max(off) + 0.01
    assert 0.0 in [value_of(right) for name, right in value.items() if name.endswith("order is right")]


def test_a_run_outside_all_regimes_says_what_was_never_held() -> None:
    assert not [text for text in said("static:4", [100, 200]) if UNHELD in text]
    found = [each for each in said("none@tail_batching", [31_000, 50] * 8) if UNHELD in each]
    assert [text.removeprefix(UNHELD) for text in found] == [
        " the schedule tail_batching (docs/regimes.md)", " contexts of 31,010 tokens (docs/regimes.md)"
    ]  # fmt: skip
    at_two = said("none", [50], hardware={"gpus": 2, "tp": 2})
    assert not [each for each in at_two if UNHELD in each]
    assert [each for each in at_two if "at TP 2 rollouts of a live engine were up to 34% off" in each]
    (text,) = [each for each in said("none", [50], hardware={"gpus": 4, "tp": 4}) if UNHELD in each]
    assert "TP 4" in text
