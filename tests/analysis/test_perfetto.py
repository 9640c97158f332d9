import json
from pathlib import Path

from tests.analysis.fake_run import write_run
from tlt.analysis.load import Run, load_run
from tlt.analysis.perfetto import to_trace
from tlt.traces.runs.runfolder import CAUSES


def _trace(run: Run, **options: int) -> dict:
    return json.loads(to_trace(run.summary, run.intervals, run.responses, run.steps, **options))


def test_processes_are_named_and_times_ascend(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, policy="<tlt>").path)
    trace = _trace(run)
    events = trace["traceEvents"]
    metadata = [event for event in events if event["ph"] == "M"]
    names = {event["pid"]: event["args"]["name"] for event in metadata if event["name"] == "process_name"}
    assert names[0] == "cluster: <tlt>"
    assert names[3] == "worker 2 (GPUs 8-11)"
    timed = [event["ts"] for event in events if event["ph"] != "M"]
    assert timed == sorted(timed)
    assert {event["pid"] for event in events} == set(names)
    assert trace["otherData"]["kept"] == "all steps"
    assert trace["otherData"]["cost_source"].startswith("assumed")


def test_slices_tile_every_worker(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path).path)
    events = _trace(run)["traceEvents"]
    for pid in range(1, 5):
        slices = [event for event in events if event["ph"] == "X" and event["pid"] == pid]
        assert {event["name"] for event in slices} <= set(CAUSES)
        assert all(event["dur"] >= 0 for event in slices)
        total_us = sum(event["dur"] for event in slices)
        assert abs(total_us - run.summary.wall_s * 1e6) < 1


def test_counters_end_at_zero_and_marks_are_there(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, steps=3).path)
    events = _trace(run)["traceEvents"]
    for pid in range(5):
        counts = [event["args"]["requests"] for event in events if event["ph"] == "C" and event["pid"] == pid]
        assert max(counts) == (64 if pid == 0 else 16)
        assert counts[-1] == 0
    assert [event["name"] for event in events if event["name"].startswith("RL step")] == [
        "RL step 0",
        "RL step 1",
        "RL step 2",
    ]
    published = [event for event in events if event["ph"] == "i"]
    assert [event["args"]["step"] for event in published] == [0, 1, 2]


def test_a_long_run_keeps_its_first_steps_and_says_so(tmp_path: Path) -> None:
    run = load_run(write_run(tmp_path, steps=6).path)
    everything = len(_trace(run)["traceEvents"])
    trace = _trace(run, max_events=everything // 2)
    assert len(trace["traceEvents"]) <= everything // 2 + 20
    assert trace["otherData"]["kept"] == "steps 0 to 2 of 6"
    marks = [event["name"] for event in trace["traceEvents"] if event["name"].startswith("RL step")]
    assert marks == ["RL step 0", "RL step 1", "RL step 2"]
    assert _trace(run, max_events=1)["otherData"]["kept"] == "steps 0 to 0 of 6"
