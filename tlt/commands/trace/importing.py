"""`tlt trace import` and `tlt trace formats`: files of RL frameworks and benchmarks as traces."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tlt.commands.options import (
    PATH,
    cap_option,
    columns_option,
    force_option,
    format_option,
    json_option,
    responses_option,
    tokenizer_option,
)
from tlt.commands.output import echo_json, refuse_taken
from tlt.commands.progress import progress
from tltsched.errors import InputError

if TYPE_CHECKING:
    from tlt.traces.importers.importing import Imported
    from tlt.traces.importers.phases import PhaseTimes
    from tlt.traces.importers.report import Left, Report
    from tlt.traces.importers.stated.drafts import StatedDrafts
    from tlt.traces.lengths.schema import Trace

SHOWN_REASONS = 20


@click.command("import")
@click.argument("path", type=PATH)
@click.option("--out", type=PATH, help="Trace file to write; needed unless --phases is given.")
@format_option
@tokenizer_option
@click.option("--phases", type=PATH, help="Write the phase times of the same logs to this JSON file.")
@cap_option("Longest response allowed.")
@click.option(
    "--step",
    type=click.IntRange(0, (1 << 31) - 1),
    default=0,
    help="Step of responses where neither the file nor its name says it.",
)
@responses_option
@columns_option
@json_option
@force_option
def import_command(
    path: Path,
    out: Path | None,
    format_name: str | None,
    tokenizer: Path | None,
    phases: Path | None,
    cap: int | None,
    step: int,
    responses: int | None,
    columns: tuple[str, ...],
    as_json: bool,
    force: bool,
) -> None:
    """Read a file or folder that an RL framework or a benchmark wrote, and write its lengths as a trace.

    `tlt trace formats` lists what can be read, `tlt trace peek` says what a file looks like. What gives no
    response is counted and shown. Metrics without lengths give phase times alone. Where responses have turns,
    or requests are turns of a session, the sessions are written beside OUT (lengths.parquet:
    lengths.sessions.parquet).
    """
    from tlt.traces.importers.detect import UnknownFormatError
    from tlt.traces.importers.importing import import_all
    from tlt.traces.importers.phases import read_phases
    from tlt.traces.importers.reading.items import Options
    from tlt.traces.importers.reading.texts import tokeniser
    from tlt.traces.lengths.files import check_output
    from tlt.traces.runs.runfolder import write_json

    _check_outputs(out, phases, force)
    if out is not None:
        check_output(out, force)
    options = Options(
        cap, step, tokeniser(tokenizer) if tokenizer else None, responses=responses, columns=columns
    )
    times = read_phases(path) if phases else None
    read = None
    if out is not None:
        try:
            with progress(f"reading {path.name}", counting="rows") as shown:
                read = import_all(path, options, format_name, shown.count)
        except UnknownFormatError:
            if times is None:
                raise
    drafts = _write(read, times, path, out, force) if read and out is not None else None
    if phases and times:
        write_json(phases, times)
    if as_json:
        echo_json(read.report if read else times)
        return
    if read and out is not None:
        _tell(read.trace, read.report, out)
        if drafts is not None and times is None:
            click.echo(f"note: The run drafted ({drafts.origin}): --phases keeps that beside the lengths.")
    elif out is not None:
        click.echo(f"no lengths: {path.name} holds metrics alone, so {out} is not written")
    if times is not None:
        _tell_times(times)


@click.command("formats")
@json_option
def formats_command(as_json: bool) -> None:
    """List the formats that `tlt trace import` reads, what writes them and what they lack."""
    from tlt.traces.importers import IMPORTERS

    names = ("name", "framework", "file", "written_by", "kind", "lengths", "lost", "waits")
    if as_json:
        echo_json([{name: getattr(one, name) for name in names} for one in IMPORTERS.values()])
        return
    for one in IMPORTERS.values():
        click.echo(f"{one.name}: {one.framework}, {one.file}; lengths {one.lengths}")
        click.echo(f"    written by  {one.written_by}")
        for sentence in (*one.lost, one.waits):
            if sentence:
                click.echo(f"    {sentence}")


def _write(
    read: Imported, times: PhaseTimes | None, path: Path, out: Path, force: bool
) -> StatedDrafts | None:
    """Write lengths, and sessions beside them if there are any; returns what the file says of drafts."""
    from dataclasses import replace

    import msgspec

    from tlt.traces.importers.stated.drafts import stated_drafts
    from tlt.traces.lengths.files import check_output, write_trace
    from tlt.traces.sessions.files import sessions_beside, write_sessions

    drafts = times.drafts if times else stated_drafts(path)
    origin = msgspec.structs.replace(read.trace.origin, drafted=drafts.origin if drafts else "")
    if read.sessions is not None:
        check_output(sessions_beside(out), force)
        write_sessions(read.sessions, sessions_beside(out), force)
    write_trace(replace(read.trace, origin=origin), out, force)
    return drafts


def _check_outputs(out: Path | None, phases: Path | None, force: bool) -> None:
    if phases is None:
        if out is None:
            raise InputError("--out", "nothing", "a file to write", "give --out, --phases or both")
        return
    if out is not None and phases.absolute() == out.absolute():
        raise InputError("--phases", str(phases), "another file than --out", "choose another name")
    refuse_taken("--phases", phases, force)


def _tell(made: Trace, report: Report, out: Path) -> None:
    from tlt.traces.lengths.schema import KIND_LABELS

    click.echo(f"read {report.source} as {report.format}: {report.framework}, lengths {report.lengths}")
    click.echo(
        f"wrote {out}: {report.rows:,} responses, {report.groups:,} prompts, {report.steps:,} steps "
        f"of {report.files:,} files; {KIND_LABELS[made.origin.kind]}"
    )
    cap = (
        "cap not known"
        if made.origin.max_response_tokens is None
        else f"cap {made.origin.max_response_tokens:,} tokens"
    )
    click.echo(f"cut: {report.truncated:,} responses ({cap})")
    if report.sessions:
        _tell_sessions(report, out)
    if report.set_to_cap:
        click.echo(f"re-tokenised above the cap and set to it: {report.set_to_cap:,}")
    if report.staleness is not None:
        found = report.staleness
        click.echo(
            f"staleness: mean {found.mean:.2f}, at most {found.max} policy updates within a response; "
            f"{found.spanning_share:.1%} of {found.responses:,} span more than one version"
        )
    _tell_left(f"left out: {report.skips:,} records", report.skipped)
    _tell_left(f"files left out: {sum(one.count for one in report.files_left_out):,}", report.files_left_out)
    for sentence in (*report.lost, *report.notes):
        click.echo(f"note: {sentence}")


def _tell_sessions(report: Report, out: Path) -> None:
    """Say which sessions were written, and how many of their waits are known."""
    from tlt.traces.importers import IMPORTERS
    from tlt.traces.sessions.files import sessions_beside

    beside = sessions_beside(out)
    click.echo(
        f"wrote {beside}: {report.sessions:,} sessions, {report.turns:,} turns; waits known: "
        f"{report.waits_known:,} of {report.waits:,}"
    )
    click.echo(f"note: {IMPORTERS[report.format].waits}")
    if report.waits_known < report.waits:
        law = f"`tlt trace convert {beside} OUT --law wait_s=LAW`"
        click.echo(f"note: Nothing stands for a wait that is not known; {law} assumes them.")


def _tell_left(title: str, left: list[Left]) -> None:
    click.echo(title)
    for one in left[:SHOWN_REASONS]:
        click.echo(
            f"  {one.count:,} x {one.reason}; first {one.first}{': ' if one.excerpt else ''}{one.excerpt}"
        )
    if len(left) > SHOWN_REASONS:
        click.echo(f"  and {len(left) - SHOWN_REASONS} more reasons (--json shows them)")


def _tell_times(times: PhaseTimes) -> None:
    from tlt.traces.importers.phase_sentences import sentences

    click.echo(f"phase times, measured by {times.framework}, {times.lines:,} steps:")
    for phase, time in times.phases.items():
        click.echo(f"  {phase}: mean {time.mean_s:.2f} s, sd {time.sd_s:.2f} s ({' + '.join(time.names)})")
    if times.ignored:
        click.echo(f"  {times.ignored:,} times out of range were left out")
    for sentence in sentences(times):
        click.echo(f"  {sentence}")
