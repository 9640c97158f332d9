"""The cross-check in words, tables, a page and files."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tlt.analysis.crosscheck.engine_steps import Bin, EngineStepCheck
from tlt.analysis.crosscheck.figures import Crosscheck, PolicyCheck, crosscheck, load_pair
from tlt.analysis.crosscheck.pictures import draw_crosscheck
from tlt.analysis.drawing.estimates import bracket, error_text, number, speedup_text
from tlt.analysis.drawing.figure import Picture, save
from tlt.analysis.drawing.html import page
from tlt.analysis.drawing.tables import TextTable, terminal_table
from tlt.traces.common.intervals import Estimate
from tlt.traces.common.writing import write_file
from tlt.traces.runs.runfolder import write_json

NAME = "crosscheck"
HEADERS = (
    "Policy", "Measured (s)", "Simulated (s)", "Error [95 %]", "Speedup, measured", "Speedup, simulated",
    "Error [95 %]", "Accept. length, measured", "simulated", "break-even",
)  # fmt: skip
ENGINE_STEP_HEADERS = ("Policy", "Engine steps", "Left out", "Error [95 %]", "Typical error of one",
                 "Error per 1,000 tokens of context", "Time between engine steps")  # fmt: skip
BIN_HEADERS = ("Policy", "By", "From", "To", "Engine steps", "Seconds", "Error [95 %]")
CAUSE_HEADERS = ("Policy", "Cause", "Measured (GPU-s)", "Simulated (GPU-s)", "Difference [95 %]")
SCHEDULE_HEADERS = (
    "Policy", "ms a trained token, measured", "simulated", "Error [95 %]", "Trained responses", "Dropped",
    "Wasted tokens", "Staleness of dropped (steps)", "Staleness of trained, mean", "largest",
)  # fmt: skip
SESSION_HEADERS = (
    "Policy", "Routing", "Turns", "Prefix-cache hits, measured", "simulated", "Difference (points)",
    "Tokens computed again",
)  # fmt: skip
TEMPLATE = "crosscheck/report.html"


def present_crosscheck(measured: Path, simulated: Path, console: Console) -> Crosscheck:
    """Write crosscheck.json, crosscheck.html and pictures into `measured`, and print the answer.

    Raises InputError for folders that cannot be compared.
    """
    pair = load_pair(measured, simulated)
    check = crosscheck(pair)
    pictures = draw_crosscheck(pair, check)
    write_json(measured / f"{NAME}.json", check)
    save(pictures, measured / "pictures")
    path = measured / f"{NAME}.html"
    write_file(path, render(check, pictures).encode())
    console.print(_terminal(check))
    if rows := _schedule_rows(check):
        console.print(_terminal_schedules(rows))
    if rows := _session_rows(check):
        shown = terminal_table("sessions: measured / simulated")
        for head in SESSION_HEADERS:
            shown.add_column(Text(head), justify="left" if head == "Policy" else "right", overflow="fold")
        for row in rows:
            shown.add_row(*(Text(figure) for figure in row))
        console.print(shown)
    console.print()
    console.print(Text(verdict(check)))
    for flag in check.flags:
        console.print(
            Text(f"{'!!' if flag.stops else '!'} {flag.text}", style="red" if flag.stops else "yellow")
        )
    console.print(Text(f"page: {path}"), soft_wrap=True)
    return check


def verdict(check: Crosscheck) -> str:
    """Return the answer in words."""
    return " ".join(verdict_sentences(check))


def verdict_sentences(check: Crosscheck) -> list[str]:
    """Return the answer sentence by sentence, the headline first."""
    stops = [flag.text for flag in check.flags if flag.stops]
    if stops:
        return [f"No conclusion: {'; '.join(stops)}."]
    if any(policy.schedule for policy in check.policies):
        return _scheduled_verdict(check)
    worst = check.worst()
    makespan = (
        f"The simulator predicts the makespan of {len(check.policies)} "
        f"{'policy' if len(check.policies) == 1 else 'policies'} within "
        f"{abs(worst.makespan_error.value):.1%} (the worst is {worst.policy}: "
        f"{error_text(worst.makespan_error)})."
    )
    if len(check.policies) == 1:
        return [makespan]
    speedup = max(check.policies, key=lambda policy: abs(policy.speedup_error.value))
    speedups = (
        f"It predicts speedups over {check.policies[0].policy} within "
        f"{abs(speedup.speedup_error.value):.1%} ({speedup.policy})."
    )
    return [makespan, speedups, _order(check)]


def _scheduled_verdict(check: Crosscheck) -> list[str]:
    """Return the answer where policies follow schedules: they are compared by what a trained token takes."""
    errors = {
        policy.policy: policy.makespan_error if policy.schedule is None else policy.schedule.error
        for policy in check.policies
    }
    worst = max(errors, key=lambda name: abs(errors[name].value))
    text = (
        f"The simulator predicts the seconds a trained token of {len(errors)} policies and schedules within "
        f"{abs(errors[worst].value):.1%} (the worst is {worst}: {error_text(errors[worst])})."
    )
    return [text] if len(errors) == 1 else [text, _order(check)]


def _order(check: Crosscheck) -> str:
    order = (
        "It ranks the policies as measured"
        if check.order.value == 1.0
        else f"Its ranking agrees with the measured one to Kendall's tau = {check.order.value:.2f}"
    )
    if check.regret.interval is not None:
        order += f" (tau within the errors: {_interval(check.order, '.2f')})"
    if check.best == check.choice:
        return f"{order}, and calls the fastest one, {check.best}, the fastest: following it loses no time."
    return (
        f"{order}, and prefers {check.choice} to {check.best}, the fastest: "
        f"following it costs {check.regret.value:.1%} of time{bracket(check.regret)}."
    )


def _interval(estimate: Estimate, form: str) -> str:
    assert estimate.interval is not None
    low, high = estimate.interval
    return f"{low:{form}} to {high:{form}}"


def _row(policy: PolicyCheck, first: bool) -> tuple[str, ...]:
    return (
        policy.policy,
        number(policy.measured_s),
        number(policy.simulated_s),
        error_text(policy.makespan_error),
        "1x" if first else speedup_text(policy.measured_speedup),
        "1x" if first else speedup_text(policy.simulated_speedup),
        "-" if first else error_text(policy.speedup_error),
        *(
            "-" if length is None else f"{length:.2f}"
            for length in (policy.measured_acceptance, policy.simulated_acceptance, policy.break_even_length)
        ),
    )


def _rows(check: Crosscheck) -> list[tuple[str, ...]]:
    return [_row(policy, index == 0) for index, policy in enumerate(check.policies)]


def _terminal(check: Crosscheck) -> Table:
    shown = terminal_table(f"{check.name}: simulated against measured, {check.rollouts} rollouts")
    headers = (
        "Policy",
        "Measured\n(s)",
        "Simulated\n(s)",
        "Error",
        "Speedup\nmeasured",
        "simulated",
        "Error",
    )
    for header in headers:
        shown.add_column(Text(header), justify="left" if header == "Policy" else "right", overflow="fold")
    for policy, *figures in _rows(check):
        shown.add_row(Text(policy), *(Text(figure.replace(" [", "\n[")) for figure in figures[:6]))
    return shown


def _terminal_schedules(rows: list[tuple[str, ...]]) -> Table:
    shown = terminal_table("what schedules do: measured / simulated")
    heads = ("Policy", "ms a token\nmeasured", "simulated", "Error", "Trained", "Dropped", "Wasted\ntokens",
             "Staleness\nof dropped", "of\ntrained", "largest")  # fmt: skip
    for head in heads:
        shown.add_column(Text(head), justify="left" if head == "Policy" else "right", overflow="fold")
    for row in rows:
        shown.add_row(*(Text(figure.replace(" [", "\n[")) for figure in row))
    return shown


def _engine_step_rows(check: Crosscheck) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for policy in check.policies:
        engine_steps = policy.engine_steps
        if engine_steps is not None:
            rows.append(
                (
                    policy.policy,
                    f"{engine_steps.engine_steps:,}",
                    f"{engine_steps.left_out:,}",
                    error_text(engine_steps.error),
                    f"{engine_steps.typical_error:.1%}",
                    f"{engine_steps.error_per_1000_tokens:+.2%}",
                    "-" if policy.between_engine_steps is None else f"{policy.between_engine_steps:.1%}",
                )
            )
    return rows


def _bin_rows(policy: PolicyCheck, engine_steps: EngineStepCheck) -> list[tuple[str, ...]]:
    groups = (
        ("K", engine_steps.by_k),
        ("context (tokens)", engine_steps.by_context),
        ("batch", engine_steps.by_batch),
    )
    return [_bin_row(policy.policy, by, part) for by, parts in groups for part in parts]


def _bin_row(policy: str, by: str, part: Bin) -> tuple[str, ...]:
    return (
        policy, by, f"{part.low:,.0f}", f"{part.high:,.0f}", f"{part.engine_steps:,}", number(part.seconds),
        error_text(part.error),
    )  # fmt: skip


def _schedule_rows(check: Crosscheck) -> list[tuple[str, ...]]:
    return [
        (
            policy.policy,
            *(f"{value * 1e3:.3g}" for value in told.s_per_trained_token),
            error_text(told.error),
            *(f"{real:,} / {model:,}" for real, model in (told.trained, told.dropped, told.wasted_tokens)),
            *(f"{real:.2f} / {model:.2f}" for real, model in (told.dropped_staleness, told.staleness)),
            "{:,} / {:,}".format(*told.staleness_max),
        )
        for policy in check.policies
        if (told := policy.schedule) is not None
    ]


def _session_rows(check: Crosscheck) -> list[tuple[str, ...]]:
    return [
        (
            policy.policy,
            told.routing,
            "{:,} / {:,}".format(*told.turns),
            *(f"{share:.1%}" for share in told.hit_share),
            f"{100 * (told.hit_share[1] - told.hit_share[0]):+.1f}",
            "{:,} / {:,}".format(*told.again_tokens),
        )
        for policy in check.policies
        if (told := policy.sessions) is not None
    ]


def _cause_rows(check: Crosscheck) -> list[tuple[str, ...]]:
    return [
        (
            policy.policy,
            cause.cause,
            number(cause.measured_gpu_s),
            number(cause.simulated_gpu_s),
            error_text(cause.difference),
        )
        for policy in check.policies
        for cause in policy.causes
    ]


def render(check: Crosscheck, pictures: list[Picture]) -> str:
    """Return the page."""
    bins = [
        row
        for policy in check.policies
        if policy.engine_steps
        for row in _bin_rows(policy, policy.engine_steps)
    ]
    return page(
        TEMPLATE,
        title=f"{check.name}: cross-check",
        check=check,
        answer=verdict_sentences(check),
        policies=TextTable(HEADERS, _rows(check)),
        pictures=pictures,
        causes=TextTable(CAUSE_HEADERS, _cause_rows(check), names=(1,)),
        schedules=TextTable(SCHEDULE_HEADERS, _schedule_rows(check)),
        sessions=TextTable(SESSION_HEADERS, _session_rows(check)),
        engine_steps=TextTable(ENGINE_STEP_HEADERS, _engine_step_rows(check)),
        bins=TextTable(BIN_HEADERS, bins, names=(1,)),
    )
