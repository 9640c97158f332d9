"""`tlt trace`: look at lengths, draw from them, fit them, convert them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tlt.commands.options import HELP, PATH, WholeGroup, cap_option, force_option, json_option, seed_option
from tlt.commands.output import echo_json
from tlt.commands.progress import progress
from tlt.commands.trace import sessions
from tlt.commands.trace.acceptance import acceptance_command
from tlt.commands.trace.doctor import doctor_command
from tlt.commands.trace.importing import formats_command, import_command
from tlt.commands.trace.peek import peek_command
from tlt.commands.trace.tables import show, table
from tltsched.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from tlt.traces.lengths.describe import Description
    from tlt.traces.lengths.fit import Fit
    from tlt.traces.lengths.histogram import LengthHistogram
    from tlt.traces.lengths.schema import Trace

KINDS = ("rollout", "serving", "generated", "unstated")

cut_option = cap_option("Cut lengths at this cap.")


@click.group(cls=WholeGroup, context_settings=HELP)
def trace() -> None:
    """Response lengths: describe, sample, fit and convert.

    NAME_OR_FILE is a trace file (.parquet, .csv, .jsonl; the last two also with .gz) or recorded lengths
    that come with the package: r1-client35, r1-client66, r1-all, mooncake-conversation, azure-conversation.
    These are serving lengths, not RL rollouts. A file with a column `turn` holds sessions of turns, as
    office-work does, which comes with the package.
    """


trace.add_command(import_command)
trace.add_command(doctor_command)
trace.add_command(formats_command)
trace.add_command(acceptance_command)
trace.add_command(peek_command)


@trace.command("describe")
@click.argument("name_or_file")
@cut_option
@sessions.tokens_per_s_option
@json_option
def describe_command(name_or_file: str, cap: int | None, tokens_per_s: float | None, as_json: bool) -> None:
    """Percentiles, tail, share at the cap, what a batch waits for. Of sessions: turns, waits, prefixes."""
    from tlt.traces.lengths.describe import describe

    if sessions.are_sessions(name_or_file):
        _refuse_of_sessions("--cap", cap)
        sessions.describe(name_or_file, tokens_per_s, as_json)
        return
    _refuse_of_lengths("--tokens-per-s", tokens_per_s)
    description = describe(_histogram(name_or_file, cap))
    if as_json:
        echo_json(description)
        return
    show(f"Response length in tokens: {description.kind_label}", _description_table(description))
    show("Modelled: independent draws, a slot each, all waiting for the longest", _batch_table(description))
    click.echo(description.origin)


@trace.command("fit")
@click.argument("name_or_file")
@cut_option
@seed_option
@click.option(
    "--out", type=PATH, help="Of sessions: write the laws to this JSON file, for `tlt trace sample`."
)
@json_option
@force_option
def fit_command(
    name_or_file: str, cap: int | None, seed: int, out: Path | None, as_json: bool, force: bool
) -> None:
    """Fit lognormal, gamma and Weibull; responses at the cap are censored. Of sessions: a law a quantity."""
    from tlt.traces.lengths.fit import fit_lengths
    from tlt.traces.lengths.schema import KIND_LABELS

    if sessions.are_sessions(name_or_file):
        _refuse_of_sessions("--cap", cap)
        sessions.fit(name_or_file, seed, out, as_json, force)
        return
    _refuse_of_lengths("--out", out)
    hist = _histogram(name_or_file, cap)
    fits = fit_lengths(hist, seed)
    if as_json:
        echo_json([_fit_json(fit) for fit in fits])
        return
    show(f"Fitted laws: {KIND_LABELS[hist.origin.kind]}", _fit_table(fits))
    click.echo(f"Parameters from {fits[0].sample_text()}; KS and p99 against all rows.")
    for fit in fits:
        click.echo(f"{fit.law}: {fit.advice()}")
    click.echo(hist.origin.text())


@trace.command("sample")
@click.argument("name_or_file")
@click.option("--out", type=PATH, required=True, help="Trace file to write.")
@click.option("--n", type=click.IntRange(min=1), help="Independent responses: one step, one sample a prompt.")
@click.option("--steps", type=click.IntRange(min=1), help="RL steps.")
@click.option("--prompts", type=click.IntRange(min=1), help="Prompts a step.")
@click.option("--samples", type=click.IntRange(min=1), help="Responses a prompt.")
@click.option(
    "--group-correlation", type=float, default=0.0, show_default=True, help="Modelled; 0 <= rho < 1."
)
@click.option(
    "--drift", type=float, default=0.0, show_default=True, help="Modelled; growth a step, log length."
)
@click.option(
    "--prompt-tokens", type=click.IntRange(min=0), default=0, help="Assumed prompt length; 0: not known."
)
@sessions.law_option
@cut_option
@seed_option
@force_option
def sample_command(
    name_or_file: str,
    out: Path,
    n: int | None,
    steps: int | None,
    prompts: int | None,
    samples: int | None,
    group_correlation: float,
    drift: float,
    prompt_tokens: int,
    laws: tuple[str, ...],
    cap: int | None,
    seed: int,
    force: bool,
) -> None:
    """Draw a trace from recorded lengths: --n, or --steps, --prompts and --samples.

    Sessions, or laws of them (a JSON file of `tlt trace fit`), give sessions.
    """
    from tlt.traces.lengths.files import check_output
    from tlt.traces.lengths.generate import generate

    _refuse_same_file(name_or_file, out)
    check_output(out, force)
    if sessions.are_laws(name_or_file) or sessions.are_sessions(name_or_file):
        _refuse_of_sessions("--cap", cap)
        for option, value in (("--group-correlation", group_correlation), ("--drift", drift)):
            _refuse_of_sessions(option, value or None)
        _refuse_of_sessions("--prompt-tokens", prompt_tokens or None)
        sessions.sample(name_or_file, out, _shape(n, steps, prompts, samples), laws, seed, force)
        return
    _refuse_of_lengths("--law", laws or None)
    hist = _histogram(name_or_file, None)
    made = generate(
        hist,
        *_shape(n, steps, prompts, samples),
        max_response_tokens=cap,
        group_correlation=group_correlation,
        length_drift_per_step=drift,
        prompt_tokens=prompt_tokens,
        seed=seed,
    )
    _write(made, out, force)


@trace.command("convert")
@click.argument("name_or_file")
@click.argument("out", type=PATH)
@cap_option("State the cap; nothing is cut.")
@click.option("--kind", type=click.Choice(KINDS), help="State what the lengths are.")
@click.option("--model", help="State the model.")
@click.option("--tokenizer", help="State the tokenizer.")
@click.option("--source", help="State where the lengths come from.")
@click.option("--licence", help="State the licence.")
@sessions.law_option
@seed_option
@force_option
def convert_command(
    name_or_file: str, out: Path, laws: tuple[str, ...], seed: int, force: bool, **stated: str | int | None
) -> None:
    """Check a trace and write it to OUT in the format of its ending; options state its origin.

    Of sessions, --law wait_s=LAW draws waits that are not known.
    """
    from tlt.traces.lengths.files import check_output

    _refuse_same_file(name_or_file, out)
    check_output(out, force)
    if sessions.are_sessions(name_or_file):
        sessions.convert(name_or_file, out, _origin_fields(stated), laws, seed, force)
        return
    _refuse_of_lengths("--law", laws or None)
    _write(_restated(name_or_file, stated), out, force)


def _origin_fields(stated: dict[str, str | int | None]) -> dict[str, str | int]:
    """Return what the user stated of an origin, by its fields."""
    return {("max_response_tokens" if k == "cap" else k): v for k, v in stated.items() if v is not None}


def _refuse_of_sessions(option: str, value: object) -> None:
    if value is not None:
        raise InputError(option, value, "nothing: the file has turns", "leave it out for sessions")


def _refuse_of_lengths(option: str, value: object) -> None:
    if value is not None:
        raise InputError(option, str(value), "nothing: the file has no turns", "leave it out for lengths")


def _restated(name_or_file: str, stated: dict[str, str | int | None]) -> Trace:
    """Return the trace with the origin fields that the user stated."""
    import msgspec

    from tlt.traces.lengths.files import read_origin, read_trace
    from tlt.traces.lengths.schema import Origin
    from tlt.traces.lengths.shipped import SHIPPED, load_trace, trace_path

    given = _origin_fields(stated)
    if name_or_file in SHIPPED:
        if given:
            raise InputError("origin", sorted(given), "no statement", "the origin of shipped data is known")
        return load_trace(name_or_file)
    path = trace_path(name_or_file)
    origin = Origin(**(msgspec.structs.asdict(read_origin(path)[0]) | given))
    with progress(f"reading {path.name}", counting="rows") as shown:
        return read_trace(path, origin, shown.count)


def _histogram(name_or_file: str, cap: int | None) -> LengthHistogram:
    from tlt.traces.lengths.files import length_histogram
    from tlt.traces.lengths.shipped import SHIPPED, load_histogram, trace_path

    if name_or_file in SHIPPED:
        hist = load_histogram(name_or_file)
    else:
        path = trace_path(name_or_file)
        with progress(f"reading {path.name}", counting="rows") as shown:
            hist = length_histogram(path, progress=shown.count)
    return hist if cap is None else hist.truncate(cap)


def _shape(
    n: int | None, steps: int | None, prompts: int | None, samples: int | None
) -> tuple[int, int, int]:
    if n is not None:
        if steps or prompts or samples:
            raise InputError("--n", n, "without --steps, --prompts and --samples", "leave one of the two out")
        return 1, n, 1
    if prompts is None:
        raise InputError("size of the sample", "neither", "--n or --prompts", "state how many responses")
    return steps or 1, prompts, samples or 1


def _refuse_same_file(name_or_file: str, out: Path) -> None:
    if out.exists() and Path(name_or_file).exists() and out.samefile(name_or_file):
        raise InputError("output", str(out), "another file than the input", "choose another name")


def _write(made: Trace, out: Path, force: bool) -> None:
    from tlt.traces.lengths.files import write_trace
    from tlt.traces.lengths.schema import KIND_LABELS

    write_trace(made, out, force)
    click.echo(f"wrote {out}: {len(made.rows):,} responses, {KIND_LABELS[made.origin.kind]}")
    click.echo(made.origin.text())


def _description_table(d: Description) -> Table:
    cap = "not known" if d.max_response_tokens is None else f"{d.max_response_tokens:,}"
    rows: list[tuple[str, ...]] = [
        ("responses", f"{d.rows:,}"),
        ("min", f"{d.min:,}"),
        ("mean", f"{d.mean:,.1f}"),
    ]
    rows += [(name, f"{getattr(d, name):,.0f}") for name in ("p50", "p75", "p90", "p95", "p99", "max")]
    rows += [("max / median", f"{d.max_over_median:.1f}"), ("cap", cap)]
    rows.append(("share at the cap", f"{d.share_at_cap:.4%}"))
    return table(rows, "figure", "value")


def _batch_table(d: Description) -> Table:
    rows = [
        (
            f"{b.batch:,}",
            f"{b.expected_max_tokens:,.0f}",
            f"{b.expected_max_over_median:.1f}",
            f"{b.idle_share:.1%}",
        )
        for b in d.batches
    ]
    return table(rows, "batch", "mean longest", "/ median", "idle share")


def _fit_table(fits: list[Fit]) -> Table:
    rows = []
    for fit in fits:
        error = "cut" if fit.p99_relative_error is None else f"{fit.p99_relative_error:+.1%}"
        figures = (f"{fit.shape:.4g}", f"{fit.scale_tokens:,.1f}", f"{fit.ks:.3f}", error, f"{fit.aic:,.0f}")
        rows.append((fit.law, *figures))
    return table(rows, "law", "shape", "scale", "KS", "p99 error", "AIC")


def _fit_json(fit: Fit) -> dict[str, object]:
    import msgspec

    return {**msgspec.structs.asdict(fit), "advice": fit.advice(), "sample": fit.sample_text()}
