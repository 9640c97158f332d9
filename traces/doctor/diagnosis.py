"""Runs the checks on a subject and says what they found, which ran, and which could not."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tlt.traces.doctor import CHECKS
from tlt.traces.doctor.base import CannotRunError, Check, Finding, Limits
from tlt.traces.doctor.subject import Subject


class Examined(msgspec.Struct, frozen=True, kw_only=True):
    """One check: the policies that it ran on, and why it could not run on others (policies by reason)."""

    check: str
    looks_for: str
    ran_on: tuple[str, ...]
    could_not: dict[str, tuple[str, ...]]


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """All that the doctor says of one path; problems come first."""

    source: str
    read_as: str
    policies: tuple[str, ...]
    findings: tuple[Finding, ...]
    checks: tuple[Examined, ...]

    @property
    def problems(self) -> int:
        """How many of the findings are problems."""
        return sum(finding.severity == "problem" for finding in self.findings)


def examine(subject: Subject, limits: Limits, checks: Sequence[Check] = CHECKS) -> Diagnosis:
    """Run every check, or these, on every policy."""
    findings: list[Finding] = []
    examined: list[Examined] = []
    for check in checks:
        ran_on: list[str] = []
        could_not: dict[str, list[str]] = {}
        for member in subject.members[:1] if check.once else subject.members:
            name = "" if check.once else member.name
            try:
                signs = check.examine(member, subject, limits)
            except CannotRunError as error:
                could_not.setdefault(str(error), []).append(name)
                continue
            ran_on.append(name)
            findings += [
                Finding(check=check.name, policy=name, **msgspec.structs.asdict(sign)) for sign in signs
            ]
        examined.append(
            Examined(
                check=check.name,
                looks_for=check.looks_for,
                ran_on=tuple(ran_on),
                could_not={reason: tuple(names) for reason, names in could_not.items()},
            )
        )
    return Diagnosis(
        source=subject.source,
        read_as=subject.read_as,
        policies=tuple(member.name for member in subject.members),
        findings=tuple(sorted(findings, key=lambda finding: finding.severity != "problem")),
        checks=tuple(examined),
    )
