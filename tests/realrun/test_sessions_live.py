"""Sessions on live workers with a fake engine: turns, tools that sleep, routing, and their simulation."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.realrun.fakes import config_of, flat_times
from tests.realrun.test_replay import check_run, silent
from tests.sim.measured_world import write_calibration
from tlt.analysis.crosscheck.decisions import replay_decisions
from tlt.analysis.crosscheck.figures import crosscheck, load_pair
from tlt.analysis.crosscheck.report import render
from tlt.analysis.ledger import check_accounting
from tlt.realrun.config import RealConfig
from tlt.realrun.driver.plan import plan_policies
from tlt.realrun.driver.sessions import LiveSessions, LiveTurn
from tlt.realrun.engine.protocol import EngineRequest
from tlt.realrun.replay.replay import replay
from tlt.realrun.replay.workload import RecordedSessions
from tlt.realrun.workers import vital_signs
from tlt.sim.validate.replay_measured import simulate_replay
from tlt.traces.lengths.schema import Origin
from tlt.traces.runs.records import RECORDS, read_records
from tlt.traces.runs.runfolder import RunFolder
from tlt.traces.sessions.build import from_structs
from tlt.traces.sessions.files import write_sessions
from tlt.traces.sessions.turns import Session, Turn
from tltsched.errors import InputError
from tltsched.events import ToolsReturned, TurnsEnded

FAKES = "tests.realrun.fakes"
ROLLOUTS, SESSIONS = 2, 6


def some_sessions(wait_s: float = 0.05) -> list[Session]:
    """Six a rollout, of 2 to 4 turns; that of every third ends with its tool."""
    return [
        Session(
            step=step, prompt_id=number // 2, sample=number % 2,
            turns=tuple(
                Turn(
                    input_tokens=5 if turn else 9, response_tokens=3 + (number + turn) % 4,
                    wait_s=wait_s * (1 + turn) if turn + 1 < count or number % 3 == 0 else 0.0,
                    end="tool" if turn + 1 < count else "stop",
                )
                for turn in range(count)
            ),
        )
        for step in range(ROLLOUTS) for number in range(SESSIONS) for count in [2 + number % 3]
    ]  # fmt: skip


def configured(folder: Path, sessions: list[Session], **settings: object) -> RealConfig:
    path = folder / "asked.parquet"
    write_sessions(from_structs(sessions, Origin(source="a test", kind="generated")), path, force=True)
    return config_of(
        folder, workload={"rollouts": ROLLOUTS, "requests": SESSIONS}, engine={"max_running": 4},
        sessions={"file": str(path), **settings},
    )  # fmt: skip


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sessions")
    config = configured(folder, some_sessions(), routing="round_robin", tools_at_once=2)
    replay(config, ["none", "static:2"], folder / "out", silent, flat_times, f"{FAKES}:make_slow")
    return folder / "out"


@pytest.mark.parametrize("name", ["none", "static-2"])
def test_sessions_are_run_to_their_ends(ran: Path, name: str) -> None:
    folder = ran / name
    assert replay_decisions(folder).difference is None
    check_run(folder, 2)
    run = RunFolder(folder)
    assert check_accounting(run.summary(), run.intervals()) < 1e-9
    asked = some_sessions()
    decoded = [sum(turn.response_tokens for turn in session.turns) for session in asked]
    assert run.responses()["response_tokens"].tolist() == decoded
    given = [sum(turn.input_tokens for turn in session.turns) for session in asked]
    assert run.responses()["prompt_tokens"].tolist() == given, "all of the context that was not decoded"
    told = run.sessions()
    assert told is not None
    assert told[1]["turns"].tolist() == [len(session.turns) for session in asked]
    waits = [sum(turn.wait_s for turn in session.turns) for session in asked]
    assert told[1]["tool_s"].tolist() == pytest.approx(waits)
    assert told[0].turns == sum(len(session.turns) for session in asked)
    assert told[0].found_tokens == 0, "the fake engine keeps no cache"


def test_turns_and_tools_are_told_to_the_scheduler(ran: Path) -> None:
    bodies = [record.body for record in read_records(ran / "none" / RECORDS)]
    ended = [request for body in bodies if isinstance(body, TurnsEnded) for request in body.requests]
    returned = [body for body in bodies if isinstance(body, ToolsReturned)]
    assert len(ended) == sum(len(body.requests) for body in returned)
    assert sum(len(body.ended) for body in returned) == 2 * ROLLOUTS, "these end with their tools"


def test_the_simulation_counts_turns_and_contexts_alike(ran: Path, tmp_path: Path) -> None:
    simulate_replay(ran, write_calibration(tmp_path / "calibration.json"), tmp_path / "simulated")
    for name in ("none", "static-2"):
        real, model = RunFolder(ran / name).sessions(), RunFolder(tmp_path / "simulated" / name).sessions()
        assert real is not None
        assert model is not None
        assert msgspec.structs.replace(real[0], again_tokens=0) == msgspec.structs.replace(
            model[0], again_tokens=0
        )
        columns = ["response_tokens", "prompt_tokens"]
        mine = RunFolder(ran / name).responses()[columns]
        assert mine.equals(RunFolder(tmp_path / "simulated" / name).responses()[columns])
    check = crosscheck(load_pair(ran, tmp_path / "simulated"))
    for policy in check.policies:
        assert policy.sessions is not None
        assert policy.sessions.turns[0] == policy.sessions.turns[1]
        assert policy.sessions.hit_share == (0.0, 0.0)
    assert "round_robin" in render(check, [])


def test_a_turn_asks_for_the_whole_context_so_far() -> None:
    sessions = LiveSessions()
    turns = (LiveTurn((1, 2, 3), 0, 2, 0.5), LiveTurn((7,), 5, 1, 0.0), LiveTurn((9, 9), 2, 4, 0.0))
    sessions.begin({4: turns})
    whole = EngineRequest(4, (1, 2, 3), 7)
    first = sessions.asked(whole)
    assert (first.prompt_token_ids, first.response_tokens, first.told) == ((1, 2, 3), 2, True)
    assert sessions.end_turn(4, (11, 12), 1.0)
    assert sessions.call(4, 1.5) == (0.5, 1)
    assert sessions.returned(4, 9) is None, "that call was given up"
    assert sessions.returned(4, 1) == (1, False)
    assert sessions.asked(whole).prompt_token_ids == (1, 2, 3, 11, 12, 7)
    assert sessions.count([(4, 4)])[0] == type(sessions.count([(4, 4)])[0])(6, 4, 1)
    assert sessions.end_turn(4, (13,), 2.0)
    sessions.call(4, 2.0)
    assert sessions.returned(4, 2) == (2, False)
    assert sessions.asked(whole).prompt_token_ids == (1, 2, 9, 9), "what is not kept is cut off"
    assert not sessions.end_turn(4, (5, 5, 5, 5), 3.0)
    assert (sessions.by_id[4].begun, sessions.by_id[4].queue_s) == (7, 0.5)


def test_a_worker_that_dies_begins_the_turn_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_KILL", str(tmp_path / "kill"))
    monkeypatch.setenv("FAKE_KILL_AT", "12")
    (tmp_path / "kill").touch()
    config = configured(tmp_path, some_sessions(0.01))
    replay(config, ["none"], tmp_path / "out", silent, flat_times, f"{FAKES}:make_mortal")
    folder = tmp_path / "out" / "none"
    assert "died in rollout" in RunFolder(folder).summary().warnings[0]
    assert replay_decisions(folder).difference is None
    check_run(folder, 2)
    decoded = [sum(turn.response_tokens for turn in session.turns) for session in some_sessions()]
    assert RunFolder(folder).responses()["response_tokens"].tolist() == decoded


def test_workers_that_wait_for_tools_are_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vital_signs, "SILENT_S", 0.4)
    monkeypatch.setattr(vital_signs, "LOOK_S", 0.1)
    config = configured(tmp_path, some_sessions(0.5))
    replay(config, ["none"], tmp_path / "out", silent, flat_times, f"{FAKES}:make_engine")
    assert not RunFolder(tmp_path / "out" / "none").summary().warnings[1:], "nobody died"
    intervals = RunFolder(tmp_path / "out" / "none").intervals()
    assert "tool_wait" in set(intervals["cause"].astype(str))


def test_what_sessions_cannot_have_is_refused(tmp_path: Path) -> None:
    config = configured(tmp_path, some_sessions())
    for name in ("none@tail_batching", "none@bounded_async", "none@repack"):
        with pytest.raises(InputError, match="synchronous with sessions"):
            plan_policies(config, [name], None)
    unknown = [
        msgspec.structs.replace(each, turns=(msgspec.structs.replace(each.turns[0], wait_s=float("nan")),))
        for each in some_sessions()
    ]
    with pytest.raises(InputError, match="wait_s"):
        RecordedSessions(configured(tmp_path, unknown))
    with pytest.raises(InputError, match=r"routing"):
        plan_policies(configured(tmp_path, some_sessions(), routing="nearest"), ["none"], None)
    with pytest.raises(ValueError, match=r"sessions\.file"):
        config_of(tmp_path, sessions={"file": "x"}, tasks={"random_prompt_tokens": 6})
