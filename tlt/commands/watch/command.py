"""`tlt watch`: follow a live run, and say what goes wrong while it can still be stopped."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from tlt.commands.output import echo_json, limits_by

if TYPE_CHECKING:
    from tlt.commands.watch.page import Page
    from tlt.traces.doctor.base import Limits
    from tlt.traces.doctor.subject import Subject
    from tlt.traces.watch.guard import Status

CHECK_FAILED = 1  # exit code
SHOWN = 50  # steps on the page


class Source(Protocol):
    """What is read again and again; `changed` says whether the last reading found something new."""

    changed: bool

    def read(self) -> Subject | None:
        """Return the run as far as it is known; None before its first step."""


@click.command()
@click.argument("targets", metavar="FOLDER|URL...", nargs=-1, required=True)
@click.option("--every", type=click.FloatRange(0.05), default=10.0, show_default=True, metavar="SECONDS",
              help="Between two readings.")  # fmt: skip
@click.option("--once", is_flag=True, help="Stop after the first status (of metrics: the second reading).")
@click.option("--steps", type=click.IntRange(1), help="Stop after so many steps (of metrics: readings).")
@click.option("--until-idle", type=click.FloatRange(0.05), metavar="SECONDS",
              help="Stop when nothing was new for so long.")  # fmt: skip
@click.option("--strict", is_flag=True, help="Notices give exit code 1 as well.")
@click.option(
    "--calibration", metavar="NAME", help="Step times to judge K by; else those that the engines measured."
)
@click.option("--break-even", type=click.FloatRange(1.0), metavar="LENGTH",
              help="Acceptance length, bonus token counted, from which on speculation pays.")  # fmt: skip
@click.option("--max-drafter-age", type=click.IntRange(0), default=2, show_default=True, metavar="STEPS",
              help="Updates of the policy that a drafter with weights may be behind.")  # fmt: skip
@click.option("--page", type=click.IntRange(0, 65535), metavar="PORT",
              help="Also a status page, on 127.0.0.1 alone; 0 takes a free port.")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print each status as JSON.")
@click.pass_context
def watch(
    ctx: click.Context, targets: tuple[str, ...], every: float, once: bool, steps: int | None,
    until_idle: float | None, strict: bool, calibration: str | None, break_even: float | None,
    max_drafter_age: int, page: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Follow a run that goes on; exit code 1 if something was wrong with it.

    FOLDER is what the vLLM plugin writes into, or a run folder that grows; a URL is /metrics of vLLM or
    SGLang, several are the engines of one job. Ctrl-C ends, as do --once, --steps and --until-idle.
    """
    from tlt.traces.doctor.base import Limits
    from tlt.traces.watch.guard import Guard, is_problem

    source = _source(targets)
    limits = Limits(break_even=break_even, drafter_age_steps=max_drafter_age, **limits_by(calibration))
    with ExitStack() as stack:
        shown = stack.enter_context(_page(page)) if page is not None else None
        statuses: list[Status] = []
        failed = False
        guard = Guard(limits)
        stopped: set[str] = set()
        for subject in _readings(source, every, 1 if once else steps, until_idle):
            guard.limits = _with_measured(limits, source)
            status = guard.look(subject)
            failed = failed or any(strict or is_problem(finding) for finding in status.findings)
            if as_json:
                echo_json(status)
            else:
                _tell(status, bool(statuses) and statuses[-1].step == status.step)
                failed |= _tell_stopped(source, stopped) and strict
            statuses = [*statuses[-SHOWN:], status]
            if shown is not None:
                shown.show(subject.source, statuses)
    if not statuses:
        click.echo("nothing to judge was read", err=True)
    if failed:
        ctx.exit(CHECK_FAILED)


def _source(targets: tuple[str, ...]) -> Source:
    from tlt.traces.watch.folder import follow_folder
    from tlt.traces.watch.metrics import LiveMetrics
    from tltsched.errors import InputError

    urls = [target for target in targets if "://" in target]
    if len(urls) == len(targets):
        return LiveMetrics(urls)
    if len(targets) > 1:
        raise InputError(
            "FOLDER|URL", ", ".join(targets), "one folder, or URLs alone", "watch each folder by itself"
        )
    folder = Path(targets[0])
    if not folder.is_dir():
        raise InputError("FOLDER|URL", targets[0], "a folder that is there, or a URL", "check the path")
    return follow_folder(folder)


def _with_measured(limits: Limits, source: Source) -> Limits:
    """Return the limits with the step times that the engines decide by, where none were given."""
    from dataclasses import replace

    from tlt.traces.watch.job import LiveJob

    table = source.step_times() if limits.step_times is None and isinstance(source, LiveJob) else None
    if table is None:
        return limits
    return replace(limits, step_times=lambda _drafts, _most: table, calibration="that the engines decide by")


def _readings(source: Source, every_s: float, steps: int | None, until_idle_s: float | None) -> Any:
    """Yield the subject after each reading that brought something new, until one of the ends."""
    from tlt.traces.watch.job import steps_of
    from tltsched.errors import InputError

    seen: set[int] = set()
    quiet_s, lost = time.monotonic(), False
    while True:
        try:
            subject, lost = source.read(), False
        except InputError as error:
            if not seen:
                raise
            subject = None
            if not lost:
                click.echo(f"error: {error}", err=True)
            lost = True
        if subject is not None and source.changed:
            quiet_s = time.monotonic()
            yield subject
            seen |= set(steps_of(subject))
            if steps is not None and len(seen) >= steps:
                return
        if until_idle_s is not None and time.monotonic() - quiet_s >= until_idle_s:
            return
        time.sleep(every_s)


def _page(port: int) -> Page:
    from tlt.commands.watch.page import Page
    from tltsched.errors import InputError

    try:
        page = Page(port)
    except OSError as error:
        raise InputError(
            "--page", f"{port}: {error}", "a port that is free", "give another one, or 0"
        ) from None
    click.echo(f"status page: {page.url}", err=True)
    return page


def _tell_stopped(source: Source, told: set[str]) -> bool:
    """Print where the plugin stopped, each once; returns whether it did anywhere."""
    from tlt.traces.watch.job import LiveJob

    faults = source.faults() if isinstance(source, LiveJob) else []
    for fault in faults:
        if fault not in told:
            click.echo(f"notice [plugin] it stopped, and the engine goes on by its own choice: {fault}")
            told.add(fault)
    return bool(faults)


def _tell(status: Status, same_step: bool) -> None:
    """Print the step, unless it was told, and what is new."""
    from tlt.traces.watch.guard import is_problem

    if not same_step:
        click.echo(f"step {status.step}: {status.text}")
    for finding in status.new:
        kind = "problem" if is_problem(finding) else "notice"
        click.echo(f"{kind} [{finding.check}] step {status.step}: {finding.found}")
        click.echo(f"    why: {finding.why}")
        click.echo(f"    do:  {finding.todo}")
    for name in status.over:
        click.echo(f"over [{name}] step {status.step}")
