"""Runs that are still written: what is there is read, no half number is taken, and it is read again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tlt.commands import follow
from tlt.commands.trace.group import trace as trace_group
from tlt.sim.counterfactual.observed_run import observe
from tlt.traces.importers.importing import import_trace
from tlt.traces.importers.phases import read_phases
from tlt.traces.importers.reading.items import Options
from tlt.traces.importers.reading.lines import NO_END


def verl_line(step: int) -> str:
    return (
        f"step:{step} - response_length/mean:400.0 - response_length/max:2048.0 - prompt_length/mean:100.0 - "
        f"perf/total_num_tokens:32000 - timing_s/gen:30.5 - timing_s/step:{66 + step}.25\n"
    )


@pytest.mark.parametrize("cut", range(1, 140, 9))
def test_a_line_that_is_cut_gives_no_number_that_nobody_logged(cut: int, tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_text(verl_line(1) + verl_line(2)[:-cut])
    times = read_phases(path)
    assert set(times.phases["step"].values_s) <= {67.25, 68.25}
    assert set(times.phases["gen"].values_s) <= {30.5}
    trace, _ = import_trace(path, Options(responses=64))
    assert set(trace.rows.groupby("step").size()) == {64}  # 32,000 over 400 + 100


def test_a_cut_row_of_a_table_is_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_timestamp,prompt_size,token_size\n0.0,5,109\n1.0,6,10")  # of 1090, say
    trace, report = import_trace(path, Options())
    assert trace.rows["response_tokens"].tolist() == [109]
    assert [(left.reason, left.count) for left in report.skipped] == [(NO_END, 1)]


def dump(folder: Path, sizes: dict[int, int]) -> Path:
    folder.mkdir(exist_ok=True)
    for step, size in sizes.items():
        rows = [
            {"seqlen": 50 + n, "prompt_len": 10, "task_id": n // 2, "sample_idx": n % 2, "tail_version": step}
            for n in range(size)
        ]
        (folder / f"{step}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def test_a_last_step_that_is_not_whole_is_left_out(tmp_path: Path) -> None:
    found = observe(dump(tmp_path / "run", {1: 8, 2: 8, 3: 8, 4: 5}), None, Options())
    assert found.step_numbers() == [1, 2, 3]
    assert any("step 4 has 5 responses, the 3 before 8 each" in note for note in found.notes)
    whole = observe(dump(tmp_path / "other", {1: 8, 2: 6, 3: 5}), None, Options())  # of changing size
    assert whole.step_numbers() == [1, 2, 3]


def test_a_last_step_without_times_yet_is_left_out(tmp_path: Path) -> None:
    folder = dump(tmp_path / "run", {1: 8, 2: 8, 3: 8})
    lines = [f"perf {step}: {{'perf/step_time': 9.0, 'perf/rollout_time': 6.0}}\n" for step in (1, 2)]
    (folder / "metrics.log").write_text("".join(lines))
    found = observe(folder, None, Options())
    assert found.step_numbers() == [1, 2]
    assert any("no times of step 3 yet" in note for note in found.notes)


def test_the_doctor_reads_again_when_there_is_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.log"
    path.write_text("starting\n")
    growth = iter([None, verl_line(1), None, verl_line(2) + verl_line(3)[:40], None])

    def sleep(seconds: float) -> None:
        assert seconds == follow.POLL_S
        try:
            more = next(growth)
        except StopIteration:
            raise KeyboardInterrupt from None
        if more:
            with path.open("a") as file:
                file.write(more)

    monkeypatch.setattr(follow.time, "sleep", sleep)
    done = CliRunner().invoke(trace_group, ["doctor", str(path), "--follow"])
    told = done.output
    assert "nothing that is known" in told  # no step yet: told, and read again
    assert told.count("verl (verl-metrics), run.log") == 2
    assert told.count("following run.log") == 3
    assert done.exit_code == 1  # stopped by Ctrl-C


def test_the_doctor_says_what_it_would_need_for_lengths(tmp_path: Path) -> None:
    path = tmp_path / "slime.log"
    values = {"rollout/response_len/mean": 5.0, "rollout/response_len/max": 9, "perf/step_time": 9.0}
    path.write_text(f"perf 1: {values}\n")
    told = CliRunner().invoke(trace_group, ["doctor", str(path)]).output
    assert "metrics of slime; its lengths are not read" in told
    assert "--responses N" in told
