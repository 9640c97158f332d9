"""Layouts in which metrics of steps are found: the same numbers out of each."""

from __future__ import annotations

import csv
import json
import struct
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from tests.traces.event_file import write_events
from tlt.traces.importers.importing import import_trace
from tlt.traces.importers.phases import read_phases
from tlt.traces.importers.reading.items import Options, Skip
from tlt.traces.importers.reading.metric_lines import Metrics
from tlt.traces.importers.reading.metrics import iter_metrics
from tltsched.errors import InputError

# Two steps of verl: 512,000 and 563,200 tokens over 400 + 100 and 450 + 100 a response are 1,024 responses.
STEPS: dict[int, dict[str, float]] = {
    step: {
        "response_length/mean": mean, "response_length/max": 2048.0, "response_length/min": 20.0,
        "response_length/clip_ratio": 0.05, "prompt_length/mean": 100.0,
        "perf/total_num_tokens": (mean + 100.0) * 1024, "timing_s/gen": 30.0 + step,
        "timing_s/step": 66.0 + step,
    }
    for step, mean in ((1, 400.0), (2, 450.0))
}  # fmt: skip


def one_metric_a_line(path: Path) -> None:
    lines = []
    for step, values in STEPS.items():
        lines.append(f"(TaskRunner pid=9, ip=192.0.2.7) step:{step}")
        lines += [f"\x1b[36m(TaskRunner pid=9)\x1b[0m  - {name}:{value}" for name, value in values.items()]
    path.write_text("\n".join([*lines, "done"]))


def dashed(path: Path) -> None:
    path.write_text(
        "".join(
            f"step:{s} - " + " - ".join(f"{n}:{v}" for n, v in vs.items()) + "\n" for s, vs in STEPS.items()
        )
    )


def table(path: Path, *, of_a_run: bool = False, runs: tuple[str, ...] = ("run-1",)) -> None:
    names = list(STEPS[1])
    shown = [f"{run} - {name}{end}" for run in runs for name in names for end in ("", "__MIN", "__MAX")]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["Step", *shown] if of_a_run else ["_step", "_runtime", *names])
        for step, values in STEPS.items():
            rest = [value * f for _ in runs for value in values.values() for f in (1, 0.5, 2)]
            writer.writerow([step, *rest] if of_a_run else [step, 9.5, *values.values()])


def written(layout: str, folder: Path) -> Path:
    rows = [{"_step": step, **values} for step, values in STEPS.items()]
    logged = [row | {"_wandb": {"runtime": 3}} for row in rows]
    history = [{**values, "step": step, "epoch": 0.1} for step, values in STEPS.items()]
    scalars = [(step, name, value) for step, values in STEPS.items() for name, value in values.items()]
    path, table_of = folder / layout, pd.DataFrame(rows)
    write: dict[str, Callable[[], object]] = {
        "array.json": lambda: path.write_text(json.dumps(logged)),
        "array over lines.json": lambda: path.write_text(json.dumps(logged, indent=1)),
        "state.json": lambda: path.write_text(
            json.dumps({"global_step": 2, "log_history": history}, indent=2)
        ),
        "lines.jsonl": lambda: path.write_text("".join(json.dumps(row) + "\n" for row in logged)),
        "lines.log": lambda: one_metric_a_line(path),
        "dashed.log": lambda: dashed(path),
        "history.csv": lambda: table(path),
        "page.csv": lambda: table(path, of_a_run=True),
        "columns.json": lambda: path.write_text(table_of.to_json()),
        "history.parquet": lambda: table_of.to_parquet(path),
        "index.csv": lambda: table_of.to_csv(path),
        "events.out.tfevents.1": lambda: write_events(path, scalars),
        "events.out.tfevents.v2": lambda: write_events(path, scalars, tensor=True),
    }
    write[layout]()
    return path


LAYOUTS = (
    "dashed.log", "lines.log", "lines.jsonl", "array.json", "array over lines.json", "state.json",
    "history.csv", "page.csv", "columns.json", "history.parquet", "index.csv", "events.out.tfevents.1",
    "events.out.tfevents.v2",
)  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_lengths_and_times(layout: str, tmp_path: Path) -> None:
    path = written(layout, tmp_path)
    trace, report = import_trace(path, Options())
    assert report.format == "verl-metrics"
    assert trace.rows.groupby("step").size().to_dict() == {1: 1024, 2: 1024}
    assert (trace.rows["response_tokens"].max(), trace.rows["prompt_tokens"].iloc[0]) == (2048, 100)
    assert trace.rows["response_tokens"].mean() == pytest.approx(425, rel=0.02)
    assert int(trace.rows["truncated"].sum()) == 2 * round(0.05 * 1024)
    times = read_phases(path)
    assert (times.framework, times.steps) == ("verl", [1, 2])
    assert {name: time.values_s for name, time in times.phases.items()} == {
        "step": [67.0, 68.0], "gen": [31.0, 32.0],
    }  # fmt: skip


def test_a_summary_is_the_last_step_alone(tmp_path: Path) -> None:
    for name, indent in (("wandb-summary.json", None), ("pretty.json", 2)):
        path = tmp_path / name
        path.write_text(json.dumps({"_step": 2, "_wandb": {"runtime": 1}, **STEPS[2]}, indent=indent))
        trace, _ = import_trace(path, Options())
        assert trace.rows["step"].unique().tolist() == [2]


def test_several_runs_in_a_table_are_not_taken_for_one(tmp_path: Path) -> None:
    path = tmp_path / "page.csv"
    table(path, of_a_run=True, runs=("run-1", "run-2"))
    with pytest.raises(InputError, match=r"2: run-1, run-2.*one run"):
        list(iter_metrics(path))


def test_a_dict_has_the_step_of_its_bar_or_is_the_next(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(
        "  1%|1 | 10/900 [00:20<5:00, 2.00s/it]\r{'loss': 0.5, 'completions/mean_length': 5.0}\n"
        "{'loss': '0.25', 'completions/mean_length': '6.0', 'epoch': nan}\n"
        "  2%|1 | 30/900 [00:40<5:00]\n"
        "{'loss': 1, 'global_step/max_steps': '31/900'}\n"
        "{'train_runtime': 9.0, 'train/x': 3}\n{'note': 'no metrics'}\n"
    )
    found = [one for one in iter_metrics(path) if isinstance(one, Metrics)]
    assert [(one.step, one.values) for one in found] == [
        (10, {"loss": 0.5, "completions/mean_length": 5.0}),
        (11, {"loss": 0.25, "completions/mean_length": 6.0}),
        (31, {"loss": 1.0}),
    ]


def test_parts_of_a_step_are_joined_and_a_run_that_began_again_is_not(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(
        "perf 1: {'rollout/a': 1}\nperf 2: {'rollout/a': 2}\n"
        "perf 1: {'perf/b': 3}\nperf 2: {'rollout/a': 9}\n"
    )
    found = [one for one in iter_metrics(path) if isinstance(one, Metrics)]
    assert [(one.step, one.values) for one in found] == [
        (2, {"rollout/a": 2.0}), (1, {"rollout/a": 1.0, "perf/b": 3.0}), (2, {"rollout/a": 9.0}),
    ]  # fmt: skip


def test_rows_of_a_tracker_that_are_of_one_rollout_are_one_step(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    rows = [{"_step": 4, "rollout/step": 1, "a/b": 2}, {"_step": 5, "rollout/step": 1, "c/d": 3}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (found,) = iter_metrics(path)
    assert isinstance(found, Metrics)
    assert (found.step, found.values["a/b"], found.values["c/d"]) == (1, 2.0, 3.0)


def test_early_versions_of_verl_time_under_other_names(tmp_path: Path) -> None:
    path = tmp_path / "old.log"
    path.write_text(
        "step:0 - response_length/mean:4 - timing/gen:30.0 - timing/ref:2.0 - timing/update_actor:9\n"
    )
    times = read_phases(path)
    assert times.framework == "verl"
    assert {name: time.mean_s for name, time in times.phases.items()} == {
        "gen": 30.0, "logprob": 2.0, "policy_update": 9.0,
    }  # fmt: skip


def test_an_event_file_that_is_still_written_is_read_to_its_last_whole_record(tmp_path: Path) -> None:
    path = write_events(tmp_path / "events.out.tfevents.1", [(1, "a/b", 1.5), (2, "a/b", 2.5)])
    path.write_bytes(path.read_bytes()[:-7])
    assert [(one.step, one.values) for one in iter_metrics(path) if isinstance(one, Metrics)] == [
        (1, {"a/b": 1.5})
    ]
    data = bytearray(path.read_bytes())
    at = 16 + struct.unpack_from("<Q", data)[0]  # the length of the second record
    data[at] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(InputError, match="its checksum"):
        list(iter_metrics(path))


def test_a_line_among_others_that_breaks_off_gives_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text("step:3\n - timing_s/gen:5.5\n - timing_s/st")
    found = list(iter_metrics(path))
    assert [(one.step, one.values) for one in found if not isinstance(one, Skip)] == [
        (3, {"timing_s/gen": 5.5})
    ]
