"""Sweeps: the grid, what is kept, and that no way to carry it out changes a figure."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pandas as pd
import pytest

from evidence.fire.processes import ended
from tlt.commands.sim.sweep import best_sentences
from tlt.sim.config import resolve
from tlt.sim.parallel.executors import SERIAL, executor
from tlt.sim.simulation import Simulation
from tlt.sim.sweep.figures import figures
from tlt.sim.sweep.grid import Axis, Point, axis, points, split
from tlt.sim.sweep.run import LINES, TABLE, sweep
from tlt.sim.workload import load_workload
from tltsched.errors import InputError
from tltsched.written.parameters import parameters_text

SMALL: dict[str, Any] = {
    "hardware": {"gpus": 8, "tp": 4},
    "workload": {"steps": 2, "prompts_per_step": 4, "samples_per_prompt": 4, "max_response_tokens": 2048},
}
AXES = (axis("hardware.gpus=8,12,6"), axis("policy=none,static:8_8_16,tlt@tail_batching"))


def silent(done: int, of: int) -> None:
    del done, of


def test_values_keep_the_commas_inside_of_brackets() -> None:
    assert split('1, 2,[3,4], "a,b" ,f(x=1,y=2)') == ["1", "2", "[3,4]", '"a,b"', "f(x=1,y=2)"]


def test_a_grid_is_every_combination_and_the_last_axis_is_the_fastest() -> None:
    found = points(SMALL, AXES)
    assert [point.values for point in found[:4]] == [
        ("8", "none"), ("8", "static:8_8_16"), ("8", "tlt@tail_batching"), ("12", "none"),
    ]  # fmt: skip
    assert [bool(point.error) for point in found] == [False] * 6 + [True] * 3, (
        "6 GPUs are not a multiple of 4"
    )


@pytest.mark.parametrize("text", ["hardware.gpus", "=1", "hardware.gpus=", "hardware.gpus=8,8"])
def test_an_axis_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--grid"):
        axis(text)


def test_a_grid_that_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="no_such"):
        points(SMALL, [Axis("hardware.no_such", ("1", "2"))])
    with pytest.raises(InputError, match="each once"):
        points(SMALL, [AXES[0], AXES[0]])


def test_a_row_is_what_the_simulation_says(tmp_path: Path) -> None:
    table = sweep(points(SMALL, AXES), AXES, tmp_path, SERIAL, silent)
    row = table[(table["hardware.gpus"] == "8") & (table["policy"] == "tlt@tail_batching")].iloc[0]
    config = resolve(SMALL, "tlt@tail_batching")
    cluster = Simulation(config, load_workload(config.workload, config.run.seed)).run()
    step_s = [step["end_s"] - step["start_s"] for step in cluster.log.step_rows]
    tokens = sum(step["response_tokens"] for step in cluster.log.schedule_rows)
    assert row["s_per_mtoken"] == pytest.approx(sum(step_s) / tokens * 1e6)
    assert (row["schedule"], row["workers"], row["steps"]) == ("tail_batching", 2, 2)
    assert row["wasted_tokens"] > 0, "spare samples are stopped"
    assert table["error"].map(bool).tolist() == [False] * 6 + [True] * 3


def test_processes_give_the_same_table(tmp_path: Path) -> None:
    found = points(SMALL, AXES)
    one = sweep(found, AXES, tmp_path / "one", SERIAL, silent)
    with executor("processes", 2) as processes:
        two = sweep(found, AXES, tmp_path / "two", processes, silent)
    pd.testing.assert_frame_equal(one, two)
    assert (tmp_path / "one" / TABLE).read_bytes() == (tmp_path / "two" / TABLE).read_bytes()


class StoppedError(Exception):
    """Ends a sweep in the middle."""


def test_a_sweep_that_was_stopped_goes_on(tmp_path: Path) -> None:
    found = points(SMALL, AXES)

    def stop(done: int, of: int) -> None:
        if done == 2:
            raise StoppedError

    with pytest.raises(StoppedError):
        sweep(found, AXES, tmp_path, SERIAL, stop)
    with (tmp_path / LINES).open("ab") as file:
        file.write(b'{"key": "torn')
    told: list[int] = []
    again = sweep(found, AXES, tmp_path, SERIAL, lambda done, _: told.append(done))
    assert told == [2, 3, 4, 5, 6], "two of six were there"
    pd.testing.assert_frame_equal(again, sweep(found, AXES, tmp_path / "whole", SERIAL, silent))
    told.clear()
    sweep(found, AXES, tmp_path, SERIAL, lambda done, _: told.append(done))
    assert told == [6], "nothing is simulated twice, whatever a torn line hid"


def test_a_configuration_that_cannot_run_is_a_row_with_the_reason(tmp_path: Path) -> None:
    chain = Point(
        ("x",), resolve(SMALL | {"acceptance": {"kind": "published_tree"}}, "static:4")
    )  # its acceptance law is of trees
    table = sweep([chain], [Axis("name", ("x",))], tmp_path, SERIAL, silent)
    assert "published_tree" in table["error"].iloc[0]
    assert table["step_s"].isna().all()


SWEEPING = """
from tlt.sim.parallel.executors import executor
import time, sys
if __name__ == "__main__":
    with executor("processes", 2) as running:
        calls = running.run(time.sleep, [0.01, 600, 600])
        next(calls)
        print(*running._pool._processes, flush=True)
        next(calls)
"""


@pytest.mark.slow
def test_processes_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "sweeping.py"
    script.write_text(SWEEPING, encoding="utf-8")
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert parent.stdout is not None
    children = [int(number) for number in parent.stdout.readline().split()]
    parent.kill()
    assert len(children) == 2
    left = ended(children)
    _, errors = parent.communicate()
    assert not left, "they outlive their parent"
    assert errors == "", "of what it leaves, which is taken away, nobody need hear"
    assert os.listdir(tmp_path) == [script.name], "its lengths outlive it"


def test_a_parameter_of_the_schedule_is_an_axis_whichever_way_the_schedule_is_named() -> None:
    axes = (axis("policy=none,none@bounded_async(pause=wait)"), axis("cluster.schedule.trainer_share=0.5,2"))
    found = points(SMALL, axes)
    assert [bool(point.error) for point in found] == [True, True, False, True]
    assert found[2].config is not None
    assert parameters_text(found[2].config.cluster.schedule_spec()).startswith(
        "staleness=1, trainer_share=0.5"
    )
    assert "pause=wait" in parameters_text(found[2].config.cluster.schedule_spec())
    assert "trainer_share" in found[3].error


def test_the_split_of_rollout_and_training_gpus_has_a_best_inside_which_is_named() -> None:
    settings: dict[str, Any] = {
        "hardware": {"gpus": 8, "tp": 1, "model": "Qwen2.5-7B"}, "cost": {"source": "roofline"},
        "workload": {"steps": 6, "prompts_per_step": 64, "samples_per_prompt": 2,
                     "max_response_tokens": 1024},
        "phases": {"reward_s": 0.0, "logprob_s": 0.0, "policy_update_s": 2.5},
    }  # fmt: skip
    shares = ["0.125", "0.25", "0.5", "0.75", "0.875"]
    axes = (axis("policy=none@bounded_async"), axis(f"cluster.schedule.trainer_share={','.join(shares)}"))
    rows = []
    for point in points(settings, axes):
        assert point.config is not None
        row = msgspec.structs.asdict(figures(point.config))
        rows.append({"policy": point.values[0], axes[1].field: point.values[1], **row})
    table = pd.DataFrame(rows)
    best = table["s_per_mtoken"].idxmin()
    assert 0 < best < len(shares) - 1, table
    told = best_sentences(table.sort_values("s_per_mtoken"), [each.field for each in axes])
    assert f"trainer_share={shares[best]}" in told[0]
    assert told[-1] == (
        f"cluster.schedule.trainer_share = {shares[best]} lies inside, between {shares[best - 1]} and "
        f"{shares[best + 1]}."
    )
    ends = table[table[axes[1].field] <= shares[best]].sort_values("s_per_mtoken")
    assert "largest that was tried: go on there" in best_sentences(ends, [axes[1].field])[-1]


def test_what_a_comparison_does_not_rank_is_never_the_best_of_a_sweep() -> None:
    # Two steps put long responses off, which is half of what they train on; lengths known are nobody's.
    policies = ("none", "none@longest_first", "static:8_8_16@tail_batching", "static:8_8_16")
    found = points(SMALL, (axis(f"policy={','.join(policies)}"),))
    rows = [{"policy": policy} | msgspec.structs.asdict(figures(point.config))
            for policy, point in zip(policies, found, strict=True) if point.config is not None]  # fmt: skip
    table = pd.DataFrame(rows).sort_values("s_per_mtoken")
    why = dict(zip(table["policy"], table["unranked"], strict=True))
    assert [bool(why[policy]) for policy in policies] == [False, True, True, False]
    best, *told = best_sentences(table, ["policy"])
    assert best.startswith("Best: policy=static:8_8_16: ")
    assert any(
        line == f"Not ranked: policy=none@longest_first: {why['none@longest_first']}." for line in told
    )
    assert any("responses are under way or put off at its end" in line for line in told)


def test_a_best_whose_interval_overlaps_others_is_said_to_be_unsure() -> None:
    rows = [{"policy": str(at), "s_per_mtoken": 10.0 + at, "s_per_mtoken_low": 9.0 + at,
             "s_per_mtoken_high": 11.5 + at, "unranked": ""} for at in range(4)]  # fmt: skip
    told = best_sentences(pd.DataFrame(rows), ["policy"])
    assert told[1].startswith("Over RL steps its interval overlaps that of 2 others: ")
    alone = best_sentences(pd.DataFrame(rows[:1]), ["policy"])
    assert not [line for line in alone if "overlaps" in line]
