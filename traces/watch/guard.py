"""Which checks are made of a run that goes on, on which of its steps, and what of it is new."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pandas as pd

from tlt.traces.doctor import CHECKS
from tlt.traces.doctor.base import Check, Finding, Limits
from tlt.traces.doctor.checks import live
from tlt.traces.doctor.diagnosis import examine
from tlt.traces.doctor.subject import Member, RunTables, Subject

FEWEST_REQUEST_STEPS = 100  # that drafted, in a step that is judged alone
ALL = 1_000_000  # all steps that are kept
STEPS = {
    "acceptance-none": 1, "acceptance-all": 1, "drafter-age": 1, "preemptions": 1, "starving": 1,
    "preemption-storm": 1, "break-even": 3, "break-even-calibrated": 3, "break-even-stated": 3,
    "compilation": 1,
    "graph-fallback": ALL, "slower-engine-steps": ALL, "acceptance-tail": ALL,
}  # fmt: skip
"""Check -> how many of the last steps it looks at; of all, the newest is held against the others."""
ALWAYS = ("drafter-age",)  # to a run that goes on these are problems, how small the loss may be so far


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """What one reading says. `new` were not told before, `over` were, and are not found any more."""

    step: int
    text: str
    findings: tuple[Finding, ...]
    new: tuple[Finding, ...]
    over: tuple[str, ...]
    unknown: dict[str, str]  # check -> why it cannot be made

    @property
    def problems(self) -> int:
        """How many of the findings are problems."""
        return sum(is_problem(finding) for finding in self.findings)


def is_problem(finding: Finding) -> bool:
    """Return whether scripts should stop for it."""
    return finding.severity == "problem" or finding.check in ALWAYS


class Guard:
    """Looks at each reading, and remembers what it has told."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._told: dict[str, Finding] = {}

    def look(self, subject: Subject) -> Status:
        """Make the checks on the last steps of a subject with one member."""
        (member,) = subject.members
        assert member.run is not None
        found: list[Finding] = []
        unknown: dict[str, str] = {}
        for check in (*CHECKS, *live.CHECKS):
            if check.name in STEPS:
                self._check(check, member, subject, found, unknown)
        now = {finding.check: finding for finding in found}
        new = tuple(finding for finding in found if finding.check not in self._told)
        over = tuple(name for name in self._told if name not in now)
        self._told = now
        step = int(member.run.steps["step"].max())
        return Status(
            step=step,
            text=_words(last_steps(member, 1)),
            findings=tuple(found),
            new=new,
            over=over,
            unknown=unknown,
        )

    def _check(
        self, check: Check, member: Member, subject: Subject, found: list[Finding], unknown: dict[str, str]
    ) -> None:
        part = last_steps(member, STEPS[check.name])
        assert part.run is not None
        if STEPS[check.name] == 1 and check.name.startswith("acceptance") and _thin(part.run):
            part = last_steps(member, 3)
        diagnosis = examine(replace(subject, members=(part,)), self.limits, (check,))
        found += diagnosis.findings
        for why in diagnosis.checks[0].could_not:
            unknown[check.name] = why


def _thin(run: RunTables) -> bool:
    return int(run.steps["request_steps"].sum()) < FEWEST_REQUEST_STEPS


def last_steps(member: Member, count: int) -> Member:
    """Return a member with the last `count` steps of its run alone."""
    run = member.run
    assert run is not None
    steps = sorted(run.steps["step"])[-count:]

    def part(table: pd.DataFrame | None) -> pd.DataFrame | None:
        return None if table is None else table[table["step"].isin(steps)].reset_index(drop=True)

    def kept(table: pd.DataFrame) -> pd.DataFrame:
        return table[table["step"].isin(steps)].reset_index(drop=True)

    cut = replace(
        run, responses=kept(run.responses), intervals=kept(run.intervals), steps=kept(run.steps),
        engine_steps=part(run.engine_steps), live=part(run.live),
    )  # fmt: skip
    told = run.decision_intervals
    if told is not None:
        cut.__dict__["decision_intervals"] = replace(
            told, stretches=kept(told.stretches), positions=kept(told.positions)
        )
    rows = member.rows[member.rows["step"].isin(steps)] if member.rows is not None else None
    return replace(member, rows=rows, run=cut)


def _words(member: Member) -> str:
    """Return a line about the newest step."""
    run = member.run
    assert run is not None
    parts = []
    if len(run.responses):
        parts.append(
            f"{len(run.responses):,} responses, {int(run.responses['response_tokens'].sum()):,} tokens"
        )
    if run.live is not None and len(run.live):
        parts.append(f"up to {run.live['batch'].max():,.0f} running, {run.live['waiting'].max():,} waiting")
    request_steps = int(run.steps["request_steps"].sum())
    if request_steps:
        length = 1 + int(run.steps["accepted_tokens"].sum()) / request_steps
        parts.append(f"acceptance length {length:.2f} (with bonus)")
    else:
        parts.append("nothing drafted")
    seconds = float((run.steps["rollout_end_s"] - run.steps["start_s"]).sum())
    return f"{seconds:,.1f} s, " + ", ".join(parts)
