"""`tlt trace doctor`: what in a run looks wrong."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tlt.commands.follow import follow_option, followed
from tlt.commands.options import (
    PATH,
    cap_option,
    columns_option,
    format_option,
    json_option,
    responses_option,
    tokenizer_option,
)
from tlt.commands.output import echo_json, limits_by

if TYPE_CHECKING:
    from tlt.traces.doctor.base import Finding
    from tlt.traces.doctor.diagnosis import Diagnosis

CHECK_FAILED = 1  # exit code


@click.command("doctor")
@click.argument("paths", metavar="PATH...", nargs=-1, required=True, type=PATH)
@click.option(
    "--calibration", metavar="NAME", help="Step times to find the break-even with: a name or a file."
)
@click.option("--break-even", type=click.FloatRange(1.0), metavar="LENGTH",
              help="Acceptance length, bonus token counted, from which on speculation pays.")  # fmt: skip
@click.option("--max-drafter-age", type=click.IntRange(0), default=10, show_default=True, metavar="STEPS",
              help="Policy updates that a drafter may be behind.")  # fmt: skip
@click.option("--max-staleness", type=click.IntRange(0), default=4, show_default=True, metavar="STEPS",
              help="Policy updates that a sample may be behind.")  # fmt: skip
@format_option
@tokenizer_option
@cap_option("Longest response allowed, for logs that do not say.")
@responses_option
@columns_option
@follow_option
@json_option
@click.pass_context
def doctor_command(
    ctx: click.Context,
    paths: tuple[Path, ...],
    calibration: str | None,
    break_even: float | None,
    max_drafter_age: int,
    max_staleness: int,
    format_name: str | None,
    tokenizer: Path | None,
    cap: int | None,
    responses: int | None,
    columns: tuple[str, ...],
    follow: bool,
    as_json: bool,
) -> None:
    """Look for what is wrong in runs, traces and logs; exit code 1 if there is a problem.

    PATH is a run folder or a comparison of this project, a trace, or what `tlt trace import` reads, of a run
    that goes on too. Problems make a figure wrong or lose time; notices are to be known. What could not be
    checked is told as well.
    """
    from tlt.traces.doctor.base import Limits
    from tlt.traces.doctor.diagnosis import examine
    from tlt.traces.doctor.subject import read_subject
    from tlt.traces.importers.reading.items import Options
    from tlt.traces.importers.reading.texts import tokeniser

    limits = Limits(
        break_even=break_even,
        drafter_age_steps=max_drafter_age,
        staleness_steps=max_staleness,
        **limits_by(calibration),
    )
    options = Options(
        cap, tokenise=tokeniser(tokenizer) if tokenizer else None, responses=responses, columns=columns
    )
    problems = 0

    def read() -> None:
        nonlocal problems
        found = [examine(read_subject(path, options, format_name), limits) for path in paths]
        problems = sum(diagnosis.problems for diagnosis in found)
        if as_json:
            echo_json(found)
            return
        for number, diagnosis in enumerate(found):
            if number:
                click.echo()
            _tell(diagnosis)

    followed(paths, read, follow)
    if problems:
        ctx.exit(CHECK_FAILED)


def _tell(diagnosis: Diagnosis) -> None:
    notices = len(diagnosis.findings) - diagnosis.problems
    policies = f", {len(diagnosis.policies)} policies" if len(diagnosis.policies) > 1 else ""
    click.echo(f"{diagnosis.source}: {diagnosis.read_as}{policies}")
    click.echo(f"problems: {diagnosis.problems}, notices: {notices}")
    alike: dict[tuple[str, ...], list[Finding]] = {}
    for finding in diagnosis.findings:
        alike.setdefault((finding.severity, finding.check, finding.why, finding.todo), []).append(finding)
    for findings in alike.values():
        _tell_findings(findings)
    click.echo()
    ran = [check.check for check in diagnosis.checks if check.ran_on]
    click.echo(f"ran: {len(ran)} of {len(diagnosis.checks)} checks: {', '.join(ran)}")
    could_not: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for check in diagnosis.checks:
        for reason, names in check.could_not.items():
            everywhere = len(check.could_not) == 1 and not check.ran_on
            could_not.setdefault((reason, () if everywhere else names), []).append(check.check)
    for (reason, names), checks in could_not.items():
        on = f" on {', '.join(names)}" if names else ""
        click.echo(f"could not run{on}: {', '.join(checks)}: {reason}")


def _tell_findings(findings: list[Finding]) -> None:
    """Print findings of one check with the same reason and remedy; policies with the same figures as one."""
    first = findings[0]
    same: dict[tuple[str, str], list[str]] = {}
    for finding in findings:
        same.setdefault((finding.found, finding.source), []).append(finding.policy)
    click.echo()
    click.echo(f"{first.severity} [{first.check}]")
    for (found, source), policies in same.items():
        names = ", ".join(policy for policy in policies if policy)
        click.echo(f"    {names}{': ' if names else ''}{found}")
        click.echo(f"        from {source}")
    click.echo(f"    why: {first.why}")
    click.echo(f"    do:  {first.todo}")
