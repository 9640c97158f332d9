"""What a report and the doctor say of sessions: the figures of their run folder, in words and as a table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.analysis.test_bounds import bounds
from tests.sim.session_world import WORLD, drawn_rows, sessions_of
from tlt.analysis.comparison.sessions import session_sentence, session_table
from tlt.analysis.comparison.verdict import TOOLS, ceiling_sentence, ceilings
from tlt.analysis.load import load_run
from tlt.sim.config import resolve
from tlt.sim.simulation import Simulation
from tlt.sim.workload import SessionTrace
from tlt.sim.write_run import run_into
from tlt.traces.runs.runfolder import RunFolder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("sessions")
    settings = WORLD | {
        "workload": {"sessions": "by hand", "steps": 2},
        "cluster": {"tools_at_once": 2, "phases": ["reward"]},
        "tools": {"timeout_s": 0.4},
    }
    sessions = sessions_of(drawn_rows(4, 16), samples=2, steps=2)
    run_into(Simulation(resolve(settings, "static:2"), SessionTrace.of(sessions)), path, "static:2")
    return path


def test_a_report_tells_what_sessions_met_with(folder: Path) -> None:
    run = load_run(folder)
    assert run.sessions is not None
    facts, rows = run.sessions
    assert facts.turns == rows["turns"].sum()
    assert 0 < facts.found_tokens < facts.asked_tokens
    assert facts.timeouts > 0
    sentence = session_sentence(run)
    assert f"{facts.hit_share:.1%} of the contexts were found in prefix caches" in sentence
    assert "s more in the queue for them" in sentence
    table = session_table((run,))
    assert table is not None
    ((policy, routing, count, *_),) = table.rows
    assert (policy, routing, count) == ("static:2", "sticky", "16")


def test_time_at_tools_is_a_cause_of_its_own(folder: Path) -> None:
    intervals = RunFolder(folder).intervals()
    assert "tool_wait" in set(intervals["cause"].astype(str))


def test_a_bound_says_that_tools_take_no_time_in_it(folder: Path) -> None:
    run = load_run(folder)
    found = ceilings(bounds(2), run)
    assert [TOOLS in each.words for each in found] == [True, True, False, True]
    assert TOOLS in ceiling_sentence(bounds(2), run)
    assert TOOLS not in ceiling_sentence(bounds(2), replace(run, sessions=None))


def test_single_responses_have_no_such_words(folder: Path) -> None:
    alone = replace(load_run(folder), sessions=None)
    assert session_sentence(alone) == ""
    assert session_table((alone,)) is None
