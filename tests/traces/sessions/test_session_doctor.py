"""The doctor on sessions: each check with a file that has the fault and one that has not."""

from pathlib import Path

import pytest

from tlt.traces.doctor.base import Limits
from tlt.traces.doctor.checks.sessions import CHECKS
from tlt.traces.doctor.diagnosis import examine
from tlt.traces.doctor.subject import read_subject
from tlt.traces.importers.reading.items import Options
from tlt.traces.lengths.schema import Origin
from tlt.traces.sessions.build import from_structs
from tlt.traces.sessions.files import write_sessions
from tlt.traces.sessions.turns import Session, SessionLimits, Turn

NAN = float("nan")


def found(tmp_path: Path, sessions: list[Session], limits: SessionLimits | None = None) -> dict[str, str]:
    path = tmp_path / "sessions.parquet"
    write_sessions(from_structs(sessions, Origin(source="written here", kind="rollout"), limits), path)
    subject = read_subject(path, Options())
    assert subject.read_as == "sessions"
    diagnosis = examine(subject, Limits(), CHECKS)
    assert all(check.ran_on for check in diagnosis.checks)
    return {finding.check: f"{finding.severity}: {finding.found}" for finding in diagnosis.findings}


def session(index: int, wait_s: float = 2.0, end: str = "stop", **last: int) -> Session:
    turns = (
        Turn(input_tokens=100, response_tokens=20, wait_s=wait_s, end="tool"),
        Turn(input_tokens=30, response_tokens=50, end=end, **last),
    )
    return Session(prompt_id=index, turns=turns)


HEALTHY = [session(index) for index in range(40)]


def test_healthy_sessions_have_no_finding(tmp_path: Path) -> None:
    assert found(tmp_path, HEALTHY, SessionLimits(max_context_tokens=1_000)) == {}


@pytest.mark.parametrize(
    ("check", "sessions", "limits", "told"),
    [
        ("tool-waits", [session(i, NAN if i % 4 else 1.0) for i in range(40)], None,
         "problem: 30 of 40 waits between turns are not known"),
        ("tool-waits", [session(i, NAN if i == 3 else 1.0) for i in range(40)], None,
         "notice: 1 of 40 waits between turns are not known"),
        ("tool-waits", [session(i, 0.0) for i in range(40)], None,
         "problem: all 40 waits that are known are 0 s"),
        ("cut-sessions", [session(i, end="length" if i % 2 else "stop") for i in range(40)], None,
         "problem: 20 of 40 sessions (50.0%) were cut: 20 by the cap"),
        ("cut-sessions", [session(i, end="timeout" if i == 7 else "stop") for i in range(40)], None,
         "notice: 1 of 40 sessions (2.5%) were cut: 1 by the time-out"),
        ("full-contexts", HEALTHY, SessionLimits(max_context_tokens=201),
         "problem: 40 of 40 sessions end within 2 % of the cap on a context, 201 tokens"),
        ("lost-prefixes", [session(i, kept_tokens=90) for i in range(40)], None,
         "problem: 40 of 40 later turns begin with less than the context before; 1,200 tokens"),
        ("hanging-tools", [session(i, 90.0 if i == 5 else 2.0) for i in range(40)], None,
         "notice: 1 of 40 sessions wait more than 20 times the median of 2.0 s, the longest 90 s"),
    ],
)  # fmt: skip
def test_a_fault_is_found(
    check: str, sessions: list[Session], limits: SessionLimits | None, told: str, tmp_path: Path
) -> None:
    findings = found(tmp_path, sessions, limits)
    assert list(findings) == [check]
    assert findings[check].startswith(told)
