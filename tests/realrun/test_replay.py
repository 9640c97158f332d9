"""Replays through real processes with a fake engine: files, deaths, interrupts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import msgspec
import pandas as pd
import pytest

from tests.realrun.fakes import config_of, flat_times
from tlt.realrun.config import RealConfig
from tlt.realrun.driver.engine_record import EngineRecord
from tlt.realrun.driver.part_file import part_paths, read_parts, write_part
from tlt.realrun.driver.plan import plan_policies
from tlt.realrun.driver.step import LiveStep, decode_step
from tlt.realrun.driver.write_run import acceptance_table
from tlt.realrun.replay.replay import replay
from tlt.realrun.replay.workload import NaturalLengths, RecordedLengths
from tlt.realrun.workers.executor import WorkerError
from tlt.traces.common.manifest import is_whole, verify_all
from tlt.traces.lengths.files import write_trace
from tlt.traces.lengths.schema import Origin, Trace
from tlt.traces.runs.records import in_order
from tlt.traces.runs.request_acceptance import read_acceptance
from tlt.traces.runs.runfolder import Comparison, RunFolder, read_struct
from tlt.traces.runs.training import prompt_kinds
from tltsched.commands import Command
from tltsched.errors import InputError
from tltsched.event_log import SchedulerSetup, read
from tltsched.events import BatchFormed, DecisionEnded, RequestsFinished, WorkerLost

FAKES = "tests.realrun.fakes"
POLICIES = ("none", "static:2", "tlt_chains", "goodput:off+1+2+4")
FOLDERS = ("none", "static-2", "tlt_chains", "goodput-off-1-2-4")


def silent(what: str) -> None:
    del what


def check_run(folder: Path, workers: int) -> None:
    """Demand that intervals tile, each response is there once and in time, and records are in order."""
    run = RunFolder(folder)
    summary, intervals, responses, steps = run.summary(), run.intervals(), run.responses(), run.steps()
    for worker in range(workers):
        mine = intervals[intervals["worker"] == worker]
        starts, ends = mine["start_s"].tolist(), mine["end_s"].tolist()
        assert starts[0] == 0.0
        assert starts[1:] == ends[:-1]
        assert ends[-1] == summary.wall_s
    assert not responses.duplicated(["step", "request"]).any()
    assert (responses["finish_s"] <= summary.wall_s).all()
    assert (responses["finish_s"] >= responses["start_s"]).all()
    assert steps["end_s"].iloc[-1] == summary.wall_s
    lines = (folder / "records.jsonl").read_bytes().splitlines()
    records = list(read(lines))
    assert [record.seq for record in records] == list(range(len(records)))
    assert [record.t_s for record in records] == sorted(record.t_s for record in records)


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replayed")
    done: list[str] = []
    config = config_of(folder, workload={"rollouts": 3})
    replay(config, POLICIES, folder / "out", done.append, flat_times, f"{FAKES}:make_engine")
    assert done[0] == "warm-up"
    assert done[1:5] == [f"{policy}, rollout 1" for policy in POLICIES]
    assert done[5:9] == [
        f"{policy}, rollout 2" for policy in (*POLICIES[1:], POLICIES[0])
    ]  # the order rotates
    return folder / "out"


def test_a_comparison_folder_is_left(replayed: Path) -> None:
    assert read_struct(replayed / "comparison.json", Comparison).runs == FOLDERS
    assert not (replayed / "parts").exists()
    for folder in FOLDERS:
        check_run(replayed / folder, 2)
        summary = RunFolder(replayed / folder).summary()
        assert summary.kind == "measured"
        assert summary.steps == 3
    engine = read_struct(replayed / "engine.json", EngineRecord)
    assert engine.config.workload.rollouts == 3
    assert "OMP_NUM_THREADS" in engine.environment


def test_all_policies_generate_the_same(replayed: Path) -> None:
    lengths = pd.read_parquet(replayed / "lengths.parquet")
    assert lengths["response_tokens"].max() == 64
    assert lengths["response_tokens"].min() >= 2
    for folder in FOLDERS:
        responses = RunFolder(replayed / folder).responses()
        assert responses["response_tokens"].tolist() == lengths["response_tokens"].tolist()


def test_engine_steps_agree_with_the_records(replayed: Path) -> None:
    for folder in FOLDERS:
        engine_steps = pd.read_parquet(replayed / folder / "engine_steps.parquet")
        records = read((replayed / folder / "records.jsonl").read_bytes().splitlines())
        intervals = [record.body for record in records if isinstance(record.body, DecisionEnded)]
        decode = engine_steps[engine_steps["prompt_tokens"] == 0]
        assert sum(interval.engine_steps for interval in intervals) == len(decode)
        assert sum(interval.request_steps for interval in intervals) == decode["batch"].sum()
        assert (
            sum(sum(interval.accepted_by_position) for interval in intervals)
            == decode["accepted_tokens"].sum()
        )
        assert sum(interval.decode_s for interval in intervals) == pytest.approx(decode["seconds"].sum())


def test_causes_follow_the_policy(replayed: Path) -> None:
    causes = {folder: set(RunFolder(replayed / folder).intervals()["cause"]) for folder in FOLDERS}
    assert causes["none"] == {"prefill", "decode", "tail_idle"}
    assert causes["static-2"] == {"prefill", "speculate", "tail_idle"}
    assert causes["tlt_chains"] == {"prefill", "decode_off", "speculate", "tail_idle"}
    steps = RunFolder(replayed / "static-2").steps()
    assert (steps["accepted_tokens"] > 0).all()
    assert (RunFolder(replayed / "none").steps()["drafter_version"] == -1).all()


def test_a_finished_replay_is_not_run_again(replayed: Path) -> None:
    before = (replayed / "none" / "records.jsonl").read_bytes()
    config = config_of(replayed.parent, workload={"rollouts": 3})
    replay(config, POLICIES, replayed, silent, flat_times, "no.such:engine")
    assert (replayed / "none" / "records.jsonl").read_bytes() == before
    other = config_of(replayed.parent, seed=1, workload={"rollouts": 3})
    with pytest.raises(InputError, match="measurements are not overwritten"):
        replay(other, POLICIES, replayed, silent, flat_times, f"{FAKES}:make_engine")


@pytest.mark.parametrize("kill_at", [1, 8, 60])
def test_a_worker_that_is_killed_loses_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kill_at: int
) -> None:
    order = tmp_path / "die"
    order.touch()
    monkeypatch.setenv("FAKE_KILL", str(order))
    monkeypatch.setenv("FAKE_KILL_AT", str(kill_at))
    config = config_of(tmp_path)
    replay(config, ("static:2", "static:4"), tmp_path / "out", silent, None, f"{FAKES}:make_mortal")
    assert not order.exists()
    dead = set()
    for folder in ("static-2", "static-4"):
        check_run(tmp_path / "out" / folder, 2)
        run = RunFolder(tmp_path / "out" / folder)
        assert len(run.responses()) == 24
        (warning,) = [text for text in run.summary().warnings if "died" in text]
        assert "SIGKILL" in warning
        bodies = [r.body for r in read((run.path / "records.jsonl").read_bytes().splitlines())]
        dead |= {body.worker for body in bodies if isinstance(body, WorkerLost)}
        assert sum(isinstance(body, WorkerLost) for body in bodies) == 1  # each policy is told, once
        finished = [request for body in bodies if isinstance(body, RequestsFinished)
                    for request in body.requests]  # fmt: skip
        assert sorted(finished) == sorted([*range(12), *range(12)])
    assert len(dead) == 1


def test_the_last_worker_says_why_it_died(tmp_path: Path) -> None:
    with pytest.raises(WorkerError, match="MemoryError: no memory is left"):
        replay(config_of(tmp_path), ("none",), tmp_path / "out", silent, None, f"{FAKES}:make_broken")


SCRIPT = """
import os
import signal
import sys
import threading
from pathlib import Path
from tlt.realrun.replay.replay import replay
from tests.realrun.fakes import config_of, flat_times

if __name__ == "__main__":
    # Tests in the background of a shell inherit that Ctrl-C is not heard.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = Path(sys.argv[1])
    config = config_of(folder, workload={"rollouts": 4})
    policies = ("none", "goodput:off+1+2")

    def show(what):
        print(what, flush=True)
        if what == sys.argv[3]:  # in here: another process may be late
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT)).start()

    replay(config, policies, folder / "out", show, flat_times, "tests.realrun.fakes:" + sys.argv[2])
"""


@pytest.mark.slow
def test_an_interrupted_replay_can_be_read_and_goes_on(tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, str(script), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    stopped = subprocess.run(
        [*command, "make_slow", "goodput:off+1+2, rollout 2"],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert stopped.returncode == -signal.SIGINT, stopped.stderr
    out = tmp_path / "out"
    check_run(out / "none", 2)
    rounds = RunFolder(out / "none").summary().steps
    assert 1 <= rounds < 4
    first = RunFolder(out / "none").responses()
    kept = {path: path.read_bytes() for path in out.glob("parts/*/*.msgpack")}

    resumed = subprocess.run(
        [*command, "make_engine", "never"], capture_output=True, text=True, check=False, env=environment
    )
    # The fake engines have different names, and so are different engines.
    assert "which the rest ran on" in resumed.stderr
    assert {path: path.read_bytes() for path in out.glob("parts/*/*.msgpack")} == kept

    done = subprocess.run(
        [*command, "make_slow", "never"], capture_output=True, text=True, check=True, env=environment
    )
    assert len(done.stdout.splitlines()) == 1 + 8 - len(kept)
    for folder in ("none", "goodput-off-1-2"):
        check_run(out / folder, 2)
        assert RunFolder(out / folder).summary().steps == 4
    again = RunFolder(out / "none").responses()
    pd.testing.assert_frame_equal(again.iloc[: len(first)], first)


def test_a_folder_in_which_nothing_was_measured_is_free(tmp_path: Path) -> None:
    out, engine = tmp_path / "out", f"{FAKES}:make_engine"
    with pytest.raises(InputError, match="prepare one"):
        replay(config_of(tmp_path), ("none",), out, silent, None, f"{FAKES}:make_refusing")
    replay(config_of(tmp_path, seed=2), ("none",), out, silent, None, engine)
    assert RunFolder(out / "none").summary().seed == 2
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.txt").touch()
    with pytest.raises(InputError, match="a new or empty folder"):
        replay(config_of(tmp_path), ("none",), foreign, silent, None, engine)


def stopped_replay(folder: Path) -> dict[Path, bytes]:
    """Return the parts of a replay of three rollouts of two policies that was stopped in the last one."""

    def stop(what: str) -> None:
        if what == "static:2, rollout 3":
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        again(folder, stop)
    return {path: path.read_bytes() for path in sorted((folder / "out").glob("parts/*/*.msgpack"))}


def again(folder: Path, progress: Callable[[str], None] = silent) -> None:
    config = config_of(folder, workload={"rollouts": 3})
    replay(config, ("none", "static:2"), folder / "out", progress, None, f"{FAKES}:make_engine")


@pytest.mark.parametrize("damage", [b"", None, b'{"fingerprint": "0", "complete": false}'])
def test_finished_rollouts_outlive_a_damaged_stamp(tmp_path: Path, damage: bytes | None) -> None:
    """They were out of reach once: refused with the stamp, and refused without it."""
    parts = stopped_replay(tmp_path)
    assert len(parts) >= 4
    stamp = tmp_path / "out" / "replay.json"
    stamp.unlink()
    if damage is not None:
        stamp.write_bytes(damage)
    done: list[str] = []
    again(tmp_path, done.append)
    assert len(done) == 1 + 6 - len(parts), "what was measured is not measured again"
    assert RunFolder(tmp_path / "out" / "static-2").summary().steps == 3


def test_parts_of_other_settings_are_not_taken(tmp_path: Path) -> None:
    parts = stopped_replay(tmp_path)
    (tmp_path / "out" / "replay.json").unlink()
    other = config_of(tmp_path, seed=1, workload={"rollouts": 3})
    with pytest.raises(InputError, match="measurements are not overwritten"):
        replay(other, ("none", "static:2"), tmp_path / "out", silent, None, f"{FAKES}:make_engine")
    assert {path: path.read_bytes() for path in parts} == parts


@pytest.mark.parametrize("damage", ["cut", "flipped"])
def test_a_damaged_part_is_named_and_can_be_measured_again(tmp_path: Path, damage: str) -> None:
    parts = stopped_replay(tmp_path)
    path = max(path for path in parts if path.parent.name == "none")
    whole = bytearray(parts[path])
    if damage == "flipped":
        whole[len(whole) // 2] ^= 1
    path.write_bytes({"cut": whole[:-20], "flipped": whole}[damage])
    with pytest.raises(InputError, match=rf"{path.name}.*delete it and the later ones beside it"):
        again(tmp_path)
    path.unlink()
    again(tmp_path)
    assert RunFolder(tmp_path / "out" / "none").summary().steps == 3


@pytest.mark.parametrize("name", ["tlt-manifest.json", "engine.json", "comparison.json"])
@pytest.mark.parametrize("stopped", [True, False])
def test_what_rollouts_and_settings_tell_is_made_anew(tmp_path: Path, name: str, stopped: bool) -> None:
    """A damaged list of files was refused with the advice to give the same command again, each time."""
    if stopped:
        stopped_replay(tmp_path)
    else:
        again(tmp_path)
    path = tmp_path / "out" / name
    whole = path.read_bytes()
    path.write_bytes(whole[:10])
    again(tmp_path)
    verify_all(tmp_path / "out")
    assert is_whole(tmp_path / "out")
    assert len(path.read_bytes()) == len(whole)


@pytest.mark.parametrize("name", ["steps.parquet", "tlt-manifest.json"])
def test_a_damaged_measurement_is_named_and_not_taken_as_finished(tmp_path: Path, name: str) -> None:
    again(tmp_path)
    (tmp_path / "out" / "none" / name).write_bytes(b"{}")
    with pytest.raises(InputError, match=rf"{name}.*restore a copy.*measured in another folder"):
        again(tmp_path)


def test_a_file_that_somebody_put_beside_the_parts_is_left_alone(tmp_path: Path) -> None:
    part = min(stopped_replay(tmp_path))
    (part.parent / "copy.msgpack").write_bytes(part.read_bytes())
    again(tmp_path)
    assert RunFolder(tmp_path / "out" / "none").summary().steps == 3


def test_steps_are_kept_by_number_beyond_four_digits(tmp_path: Path) -> None:
    (rollout,) = [step for _, step in read_parts(*one_part(tmp_path))]
    (tmp_path / "parts").mkdir()
    for number in (9_999, 10_000):
        write_part(tmp_path / "parts", "run", msgspec.structs.replace(rollout, step=number))
    assert [path.stem for path in part_paths(tmp_path / "parts")] == ["9999", "10000"]
    (tmp_path / "parts" / "0001.msgpack").write_bytes(msgspec.msgpack.encode(rollout))  # as once
    assert [step.step for _, step in read_parts(tmp_path / "parts", "run")] == [0, 9_999, 10_000]


def one_part(folder: Path) -> tuple[Path, str]:
    """Return the folder of one part, and what it belongs to."""
    path = min(stopped_replay(folder))
    for other in path.parent.iterdir():
        if other != path:
            other.unlink()
    return path.parent, msgspec.msgpack.decode(path.read_bytes())["run"]


def test_policies_that_vllm_cannot_run_are_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    for policies, message in (
        (("static:8_4_48",), "vLLM verifies no trees"),
        (("tlt",), "vLLM verifies no trees"),
        (("tlt_released",), "vLLM verifies no trees"),
        (("static:8",), r"a list with \[8\], which static:8 may choose"),
        (("goodput:off+1",), "--calibration"),
        (("none", "none"), "each once"),
        ((), "one policy or more"),
    ):
        with pytest.raises(InputError, match=message):
            plan_policies(config, policies, None)
    plans = plan_policies(config, ("none", "static:off", "static:4", "tlt_chains"), None)
    assert [plan.speculating for plan in plans] == [False, True, True, True]
    assert plans[0].setup == SchedulerSetup(
        workers=2, policy=plans[0].setup.policy, cluster=plans[0].setup.cluster, seed=0
    )
    assert plans[0].setup.cluster.phases == ()


def test_requests_that_do_not_fit_the_engine_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"engine\.max_context_tokens"):
        RecordedLengths(config_of(tmp_path, engine={"max_context_tokens": 40}))


def test_lengths_do_not_depend_on_the_engine(tmp_path: Path) -> None:
    first = RecordedLengths(config_of(tmp_path, engine={"max_running": 2}))
    second = RecordedLengths(config_of(tmp_path, workers={"count": 3}))
    assert first.rollouts == second.rollouts
    assert first.rollouts[0] != first.rollouts[1]
    recorded = RecordedLengths(
        config_of(tmp_path, workload={"longest_tokens": 0, "max_response_tokens": 500, "requests": 40})
    )
    assert max(request.response_tokens for request in recorded.rollouts[0]) <= 500


def test_merging_keeps_commands_behind_their_event(replayed: Path) -> None:
    lines = (replayed / "tlt_chains" / "records.jsonl").read_bytes().splitlines()
    owners: dict[str, list[bytes]] = {}
    for line, record in zip(lines, read(lines), strict=True):
        owners.setdefault(record.owner, []).append(line)
    merged = list(read(in_order(list(owners.values()))))
    assert len(merged) == len(lines)
    for before, record in pairwise(merged):
        if isinstance(record.body, Command):
            assert before.owner == record.owner
    assert any(isinstance(record.body, BatchFormed) for record in merged)
    assert msgspec.json.decode(lines[0])["seq"] == 0


def test_acceptance_by_request_adds_up_to_the_engine_steps(replayed: Path) -> None:
    assert read_acceptance(replayed / "none") is None
    for folder in FOLDERS[1:]:
        rows = read_acceptance(replayed / folder)
        assert rows is not None
        counts = ["drafted_tokens", "accepted_tokens"]
        engine_steps = pd.read_parquet(replayed / folder / "engine_steps.parquet")
        of_engines = engine_steps.groupby("step")[counts].sum().astype("int64")
        assert rows.groupby("step")[counts].sum().equals(of_engines)
        depth = rows["draft_config"].astype(int)
        assert (rows["drafted_tokens"] == depth * rows["request_steps"]).all()
        assert set(rows["from_token"]) == {0}  # the longest response has 64 tokens
    assert set(read_acceptance(replayed / "static-2")["draft_config"]) == {"2"}  # type: ignore[index]


def test_a_part_that_an_earlier_version_kept_has_no_acceptance_by_request() -> None:
    part = msgspec.to_builtins(LiveStep(step=3, start_s=1.0, policy="static:2"), builtin_types=(bytes,))
    assert part.pop("acceptance") == []
    kept = decode_step(msgspec.msgpack.encode(part))
    assert (kept.step, kept.acceptance) == (3, [])
    assert acceptance_table([kept]).empty


def test_stock_graphs_put_plain_and_drafting_engines_into_processes_of_their_own(
    tmp_path: Path, replayed: Path
) -> None:
    config = config_of(tmp_path, engine={"graphs": "stock"}, workers={"tp": 2}, workload={"rollouts": 3})
    replay(config, POLICIES, tmp_path / "out", silent, flat_times, f"{FAKES}:make_engine")
    for policy in ("none", "static-2"):
        check_run(tmp_path / "out" / policy, 2)
        summary = RunFolder(tmp_path / "out" / policy).summary()
        assert (summary.gpus_per_worker, summary.gpus) == (2, 4)
        assert summary.preemptions == 0
    assert {path.name for path in (tmp_path / "out" / "logs").iterdir()} == {
        f"worker-{slot}.log" for slot in range(4)
    }
    shared = RunFolder(replayed / "static-2").responses()
    mine = RunFolder(tmp_path / "out" / "static-2").responses()
    assert mine["response_tokens"].tolist() == shared["response_tokens"].tolist()


def test_a_death_of_either_engine_is_the_death_of_the_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_KILL", str(tmp_path / "kill"))
    monkeypatch.setenv("FAKE_KILL_AT", "40")
    (tmp_path / "kill").touch()
    config = config_of(tmp_path, engine={"graphs": "stock"})
    replay(config, ["none", "static:2"], tmp_path / "out", silent, flat_times, f"{FAKES}:make_mortal")
    for policy in ("none", "static-2"):
        check_run(tmp_path / "out" / policy, 2)
        assert "died in rollout" in RunFolder(tmp_path / "out" / policy).summary().warnings[0]


def test_a_recorded_trace_is_replayed_with_its_steps_groups_and_prompts(tmp_path: Path) -> None:
    rows = pd.DataFrame(
        {
            "step": [3, 3, 3, 7, 7], "prompt_id": [1, 1, 2, 5, 5], "sample": [0, 1, 0, 0, 1],
            "prompt_tokens": [6, 6, 9, 0, 0], "response_tokens": [4, 30, 1, 8, 5],
            "truncated": [False] * 5,
        }
    )  # fmt: skip
    rows = rows.astype(dict.fromkeys(("step", "sample", "prompt_tokens", "response_tokens"), "int32"))
    write_trace(Trace(rows, Origin(source="a test", kind="rollout")), tmp_path / "trace.parquet")
    chosen = {"lengths": str(tmp_path / "trace.parquet"), "replay_steps": True, "rollouts": 2}
    config = config_of(tmp_path, workload=chosen)
    first, second = RecordedLengths(config).rollouts
    assert [(len(each.prompt_token_ids), each.response_tokens) for each in first] == [(6, 4), (6, 30), (9, 2)]
    assert first[0].prompt_token_ids == first[1].prompt_token_ids != first[2].prompt_token_ids
    assert [each.group for each in first] == [0, 0, 1]
    assert [len(each.prompt_token_ids) for each in second] == [8, 8], "workload.prompt_tokens fills gaps"
    with pytest.raises(InputError, match=r"at most the 2 steps"):
        RecordedLengths(config_of(tmp_path, workload=chosen | {"rollouts": 3}))


def test_responses_of_a_group_share_their_prompt(tmp_path: Path) -> None:
    (requests,) = RecordedLengths(
        config_of(tmp_path, workload={"samples_per_prompt": 4, "rollouts": 1})
    ).rollouts
    assert len({request.prompt_token_ids for request in requests}) == 3
    assert [request.group for request in requests] == [0] * 4 + [1] * 4 + [2] * 4
    with pytest.raises(InputError, match=r"workload\.samples_per_prompt = 5"):
        RecordedLengths(config_of(tmp_path, workload={"samples_per_prompt": 5}))


def natural(folder: Path, **workload: int) -> RealConfig:
    return config_of(
        folder, tasks={"random_prompt_tokens": 6},
        workload={"max_response_tokens": 40, "rollouts": 2, "samples_per_prompt": 4} | workload,
    )  # fmt: skip


def test_problems_are_answered_at_natural_lengths(tmp_path: Path) -> None:
    out = tmp_path / "out"
    replay(natural(tmp_path), ("none", "static:2"), out, silent, flat_times, f"{FAKES}:make_ending_engine")
    assert not (out / "lengths.parquet").exists(), "no lengths are those of all policies"
    for folder in ("none", "static-2"):
        check_run(out / folder, 2)
        run = RunFolder(out / folder)
        responses = run.responses()
        assert responses["response_tokens"].nunique() > 3
        assert (responses["truncated"] == (responses["response_tokens"] == 40)).all()
        assert 0 < responses["truncated"].sum() < len(responses)
        assert responses.groupby("step")["group"].agg(list).tolist() == [[0] * 4 + [1] * 4 + [2] * 4] * 2
        assert run.summary().lengths_source.startswith("measured: natural")


def test_kinds_of_problems_are_kept(tmp_path: Path) -> None:
    module = tmp_path / "asked.py"
    module.write_text(
        "class Asked:\n"
        "    def prompts(self, step): return [(1, 2), (3,), (4, step + 5)]\n"
        "    def kinds(self, step): return ('sum', 'word', f'of {step}')\n"
        "    def score(self, step, group, response): return 0.0\n"
        "def make_problems(setup): return Asked()\n"
    )
    config = config_of(
        tmp_path, tasks={"module": str(module)},
        workload={"max_response_tokens": 9, "rollouts": 2, "samples_per_prompt": 4},
    )  # fmt: skip
    replay(config, ("none",), tmp_path / "out", silent, flat_times, f"{FAKES}:make_ending_engine")
    folder = tmp_path / "out" / "none"
    kinds = prompt_kinds(folder, RunFolder(folder).responses())
    assert kinds is not None
    assert kinds.tolist() == [
        *["sum"] * 4,
        *["word"] * 4,
        *["of 0"] * 4,
        *["sum"] * 4,
        *["word"] * 4,
        *["of 1"] * 4,
    ]


def test_problems_have_seeds_of_their_own_and_come_from_the_run_alone(tmp_path: Path) -> None:
    first, second = NaturalLengths(natural(tmp_path)).rollouts
    assert len({each.seed for each in (*first, *second)}) == len(first) + len(second)
    assert first[0].prompt_token_ids == first[3].prompt_token_ids != first[4].prompt_token_ids
    assert first[0].prompt_token_ids != second[0].prompt_token_ids
    assert NaturalLengths(natural(tmp_path)).rollouts == [first, second]
    assert not any(each.forced for each in first)


def test_problems_that_cannot_be_asked_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"engine\.max_context_tokens.*the longest prompt and response asked"
    ):
        NaturalLengths(natural(tmp_path, max_response_tokens=100_000))
    with pytest.raises(msgspec.ValidationError, match=r"workload\.replay_steps"):
        config_of(tmp_path, tasks={"random_prompt_tokens": 6}, workload={"replay_steps": True})


def test_a_response_longer_than_asked_stops_the_replay(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="lost, repeated or cut"):
        replay(
            natural(tmp_path), ("none",), tmp_path / "out", silent, flat_times,
            f"{FAKES}:make_overlong_engine",
        )  # fmt: skip
