"""The record of servers with and without the plugin, from rounds that are made up."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from evidence.plugin_claims import serve
from evidence.recording import Evidence, load_all
from evidence.serve_bench import Round, excess, folder_of
from tlt.plugin.facts import EngineFacts
from tltsched.errors import InputError

ARMS = {"static:2": 12.0, "static:4": 10.0, "static:4+watch": 10.02, "control": 10.05, "table": 11.0}


def measured(out: Path, arms: dict[str, float], rounds: int = 3, fault: bool = False) -> None:
    """Write rounds that each take twice as long as the one before, whatever the arm; round 0 is absurd."""
    with (out / "rounds.jsonl").open("wb") as file:
        for number in range(rounds + 1):
            for arm, makespan_s in arms.items():
                seconds = makespan_s * 2**number if number else 1e4 * len(arm)
                one = Round(
                    arm=arm, round=number, start=0, makespan_s=seconds, response_tokens=100, finish_s=(1.0,)
                )
                file.write(msgspec.json.encode(one) + b"\n")
    for arm in arms:
        if arm == "control" or arm.endswith("+watch"):
            engine = out / "plugin" / folder_of(arm) / "job" / "engines" / "0000"
            engine.mkdir(parents=True, exist_ok=True)
            about = EngineFacts(
                number=0, name=arm, mode="control", policy="goodput", engine="vLLM", engine_version="0.32.0",
                plugin_version="0", model="a model", device="one GPU", gpus=1, host="h", pid=1,
                started_unix_s=0.0, max_running=8,
            )  # fmt: skip
            (engine / "engine.json").write_bytes(msgspec.json.encode(about))
            stopped = b'{"kind":"fault","t_s":1.0,"text":"on purpose"}\n' if fault else b""
            (engine / "facts.jsonl").write_bytes(stopped)


def recorded(out: Path, monkeypatch: pytest.MonkeyPatch) -> Evidence:
    records = out / "records"
    records.mkdir(exist_ok=True)
    for module in ("evidence.recording", "evidence.plugin_claims"):
        monkeypatch.setattr(f"{module}.HERE", records)
    serve(out)
    (record,) = load_all(records).values()
    return record


def test_targets_are_met_by_whole_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each round's ratios are equal, so that intervals have no width; static:4 is the best of two."""
    measured(tmp_path, ARMS)
    record = recorded(tmp_path, monkeypatch)
    assert record.id == "plugin_serve_cuda"
    assert record.value == {
        "static:4+watch over static:4": (0.002, 0.002, 0.002),
        "control over static:4": (0.005, 0.005, 0.005),
        "table over static:4": (0.1, 0.1, 0.1),
        "rounds, at least": 3.0,
        "times the plugin stopped": 0.0,
    }
    assert record.met


@pytest.mark.parametrize(
    ("changed", "fault"),
    [({"static:4+watch": 10.06}, False), ({"control": 10.11}, False), ({}, True)],
    ids=["watching costs 0.6 %", "in charge 1.1 % slower", "the plugin stopped"],
)
def test_a_miss_is_a_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, float], fault: bool
) -> None:
    """In charge, 99 % of the goodput is a makespan of 1 / 0.99: 1.01 % more."""
    measured(tmp_path, ARMS | changed, fault=fault)
    assert recorded(tmp_path, monkeypatch).met is False


def test_rounds_that_differ_have_an_interval() -> None:
    """Logs 0 and 0.1906: mean 0.0953, of error 0.0953; Student's t of one degree 12.706: half 1.211."""
    assert excess([1.0, 1.21]) == pytest.approx((0.1, -0.672, 2.693), abs=2e-3)


def test_what_was_not_measured_is_no_record(tmp_path: Path) -> None:
    measured(tmp_path, ARMS, rounds=1)
    with pytest.raises(InputError, match="two rounds or more"):
        serve(tmp_path)
    measured(tmp_path, {arm: seconds for arm, seconds in ARMS.items() if arm != "control"})
    with pytest.raises(InputError, match=r"with \+watch, and control"):
        serve(tmp_path)
