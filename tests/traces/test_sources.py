"""What a path means."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.traces.doctor_runs import healthy, write_comparison
from tlt.traces.results.study import claim
from tlt.traces.runs.runfolder import Comparison, write_json
from tlt.traces.sources import (
    ComparisonSource,
    FrameworkLog,
    RunSource,
    TraceFile,
    open_run,
    open_runs,
    open_source,
)
from tltsched.errors import InputError

NAMES = ("none", "static-4")


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tables = (healthy("none", drafts=False), healthy("static-4"))
    return write_comparison(tmp_path_factory.mktemp("runs") / "c", *tables)


def test_a_folder_of_runs_and_a_run(comparison: Path) -> None:
    found = open_source(comparison)
    assert found == open_source(comparison / "comparison.json") == ComparisonSource(comparison, NAMES)
    assert isinstance(found, ComparisonSource)
    assert found.folders == tuple(comparison / name for name in NAMES)
    assert found.comparison() == Comparison(name="made", runs=NAMES)
    run = comparison / "none"
    for path in (run, run / "summary.json", run / "responses.parquet"):
        assert open_source(path) == RunSource(run)
    assert open_runs(run).folders == (run,)
    assert open_runs(run).comparison() == Comparison(name="made", runs=("none",))


def test_lengths_are_a_trace_and_anything_else_a_log(tmp_path: Path) -> None:
    trace, log = tmp_path / "a.csv", tmp_path / "rollout.jsonl"
    trace.write_text("response_tokens\n5\n", encoding="utf-8")
    log.write_text('{"prompt": "a"}\n', encoding="utf-8")
    assert open_source(trace) == TraceFile(trace)
    assert open_source(log) == FrameworkLog(log)
    assert open_source(tmp_path) == FrameworkLog(tmp_path)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a file or folder that exists"):
        open_source(tmp_path / "absent")


@pytest.mark.parametrize("names", [(), ("none", "none"), ("../none",), ("..",), ("/none",), ("a/b",)])
def test_a_comparison_names_folders_beside_it_each_once(tmp_path: Path, names: tuple[str, ...]) -> None:
    write_json(tmp_path / "comparison.json", Comparison(name="c", runs=names))
    with pytest.raises(InputError, match="names of folders beside it, each once"):
        open_source(tmp_path)


def test_what_is_no_run_is_said_to_be_what_it_is(tmp_path: Path, comparison: Path) -> None:
    trace = tmp_path / "a.csv"
    trace.write_text("response_tokens\n5\n", encoding="utf-8")
    with pytest.raises(
        InputError, match=r"a\.csv \(a trace\).* for run folder; allowed: a folder with summary"
    ):
        open_runs(trace)
    with pytest.raises(
        InputError, match="for --save-drift; allowed: the run folder of one policy; name one of none"
    ):
        open_run(comparison, "--save-drift")
    assert open_run(comparison / "none", "--save-drift") == RunSource(comparison / "none")


def test_a_result_without_runs_is_said_to_be_its_commands(tmp_path: Path) -> None:
    claim(tmp_path / "sweep", "sweep", {"hardware": {"gpus": 8}})
    with pytest.raises(InputError, match="where `tlt sim sweep` left no runs"):
        open_runs(tmp_path / "sweep")
