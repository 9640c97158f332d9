"""What `tlt trace describe`, `fit`, `sample` and `convert` do with sessions of turns."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tlt.commands.output import echo_json, refuse_taken
from tlt.commands.progress import progress
from tlt.commands.trace.tables import show, table
from tltsched.errors import InputError

if TYPE_CHECKING:
    from rich.table import Table

    from tlt.traces.sessions.describe import SessionDescription, Spread
    from tlt.traces.sessions.laws import AnyLaw, Quantity
    from tlt.traces.sessions.schema import Sessions
    from tlt.traces.sessions.session_laws import SessionLaws

tokens_per_s_option = click.option(
    "--tokens-per-s", type=click.FloatRange(min=0, min_open=True), metavar="RATE",
    help="Of sessions: tokens a second of one response, for the share of time that waits take.",
)  # fmt: skip
law_option = click.option(
    "--law", "laws", multiple=True, metavar="FIELD=LAW",
    help="Of sessions: another law of one quantity, such as wait_s=lognormal(median=2,sigma=1); also "
    "constant(value), exponential(mean), geometric(mean), gamma(mean,shape), weibull(scale,shape).",
)  # fmt: skip


def are_sessions(name_or_file: str) -> bool:
    """Return whether a file, or what comes with the package under that name, has turns."""
    from tlt.traces.sessions.files import is_session_file, sessions_path

    return is_session_file(sessions_path(name_or_file))


def are_laws(name_or_file: str) -> bool:
    """Return whether a name is that of a file of laws."""
    return name_or_file.endswith(".json")


def read(name_or_file: str) -> Sessions:
    """Return the sessions of a file or of that name, with a progress bar."""
    from tlt.traces.sessions.files import read_sessions, sessions_path

    path = sessions_path(name_or_file)
    with progress(f"reading {path.name}", counting="turns") as shown:
        return read_sessions(path, shown.count)


def describe(path: str, tokens_per_s: float | None, as_json: bool) -> None:
    """Print the figures of sessions."""
    from tlt.traces.sessions.describe import describe_sessions

    told = describe_sessions(read(path), tokens_per_s)
    if as_json:
        echo_json(told)
        return
    show(f"Sessions: {told.kind_label}", _counts(told))
    show("By turn or session", _spreads(told))
    for sentence in _sentences(told):
        click.echo(sentence)
    click.echo(told.origin)


def fit(path: str, seed: int, out: Path | None, as_json: bool, force: bool) -> None:
    """Print the laws of sessions, and write them for `tlt trace sample`."""
    from tlt.traces.runs.runfolder import write_json
    from tlt.traces.sessions.fit import fit_sessions

    if out is not None:
        refuse_taken("--out", out, force)
    laws = fit_sessions(read(path), seed)
    if out is not None:
        write_json(out, laws)
    if as_json:
        echo_json(laws)
        return
    for name, one in laws.quantities().items():
        click.echo(f"{name}: {one.law.text()}")
        click.echo(f"    {_law_figures(one)}")
    click.echo(
        "A named law where its distance KS is at most 0.05, or no more than chance makes of so few values."
    )
    click.echo(f"Waits known: {laws.waits_known:,} of {laws.waits:,}.")
    click.echo(laws.origin.text())


def sample(
    name_or_file: str, out: Path, sizes: tuple[int, int, int], given: tuple[str, ...], seed: int, force: bool
) -> None:
    """Draw sessions from the laws of a file, or from those fitted to sessions."""
    from tlt.traces.sessions.files import write_sessions
    from tlt.traces.sessions.fit import fit_sessions
    from tlt.traces.sessions.generate import generate_sessions
    from tlt.traces.sessions.session_laws import load_laws

    laws = load_laws(Path(name_or_file)) if are_laws(name_or_file) else fit_sessions(read(name_or_file), seed)
    made = generate_sessions(_changed(laws, given), *sizes, seed=seed)
    write_sessions(made, out, force)
    _tell(made, out)


def convert(
    path: str, out: Path, stated: dict[str, str | int], given: tuple[str, ...], seed: int, force: bool
) -> None:
    """Write sessions in the format of the ending of `out`; waits not known from a law, if one is given."""
    import dataclasses

    import msgspec

    from tlt.traces.sessions.files import write_sessions
    from tlt.traces.sessions.generate import with_waits

    sessions = read(path)
    if stated:
        origin = msgspec.structs.replace(sessions.origin, **stated)
        sessions = dataclasses.replace(sessions, origin=origin)
    for field, law in _given(given).items():
        if field != "wait_s":
            raise InputError(
                "--law", field, "wait_s alone", "sessions are recorded: `tlt trace sample` draws others"
            )
        sessions = with_waits(sessions, law, seed)
    write_sessions(sessions, out, force)
    _tell(sessions, out)


def _given(given: tuple[str, ...]) -> dict[str, AnyLaw]:
    from tlt.traces.sessions.laws import parse_law

    laws = {}
    for one in given:
        field, equals, text = one.partition("=")
        if not equals:
            raise InputError(
                "--law", one, "FIELD=LAW", "for example --law 'wait_s=lognormal(median=2,sigma=1)'"
            )
        laws[field.strip()] = parse_law(text.strip(), f"--law {field.strip()}")
    return laws


def _changed(laws: SessionLaws, given: tuple[str, ...]) -> SessionLaws:
    import msgspec

    from tlt.traces.sessions.laws import Quantity
    from tlt.traces.sessions.session_laws import QUANTITIES
    from tltsched.errors import unknown_name

    changes = {}
    for field, law in _given(given).items():
        if field not in QUANTITIES:
            raise unknown_name("--law", field, QUANTITIES, "name one of these")
        before = getattr(laws, field)
        changes[field] = Quantity(law=law, correlation=before.correlation if before else 0.0)
    return msgspec.structs.replace(laws, **changes)


def _tell(made: Sessions, out: Path) -> None:
    from tlt.traces.lengths.schema import KIND_LABELS

    kind = KIND_LABELS[made.origin.kind].replace("lengths", "sessions")
    click.echo(f"wrote {out}: {len(made):,} sessions, {len(made.end):,} turns, {kind}")
    click.echo(made.origin.text())


def _counts(told: SessionDescription) -> Table:
    rows = [
        ("sessions", f"{told.sessions:,}"),
        ("prompt groups", f"{told.groups:,}"),
        ("steps", f"{told.steps:,}"),
        ("turns", f"{told.turns:,}"),
        ("tokens decoded", f"{told.decoded_tokens:,}"),
        ("tokens observed", f"{told.observed_tokens:,}"),
        ("waits known", f"{told.waits.known:,} of {told.waits.turns:,}"),
        ("turns end by", _listed(told.ends)),
        ("sessions end by", _listed(told.last_ends)),
    ]
    return table(rows, "figure", "value")


def _spreads(told: SessionDescription) -> Table:
    spreads = {
        "turns a session": told.turns_per_session,
        "first prompt (tokens)": told.first_prompt_tokens,
        "observation (tokens)": told.observation_tokens,
        "response (tokens)": told.response_tokens,
        "decoded a session": told.decoded_per_session,
        "context at the end": told.context_tokens,
        "wait (s)": told.waits.spread_s,
        "waits of a session (s)": told.waits.per_session_s,
    }
    return table(
        [(name, *_figures(spread)) for name, spread in spreads.items()],
        "of",
        "mean",
        "p50",
        "p90",
        "p99",
        "max",
    )


def _figures(spread: Spread | None) -> tuple[str, ...]:
    if spread is None:
        return ("-",) * 5
    values = (spread.mean, spread.p50, spread.p90, spread.p99, spread.max)
    return tuple(f"{value:,.0f}" if value >= 100 else f"{value:.3g}" for value in values)


def _sentences(told: SessionDescription) -> list[str]:
    waits, prefixes = told.waits, told.prefixes
    rate = f"{waits.tokens_per_s:g} tokens a second a response"
    how = "as stated" if waits.tokens_per_s_stated else "assumed: state --tokens-per-s"
    lines = []
    if waits.waiting_share is not None:
        lines.append(
            f"Waiting: {waits.waiting_share:.1%} of a session's time, modelled: {rate} ({how}), no queue."
        )
    if waits.known < waits.turns:
        lines.append(
            f"{waits.turns - waits.known:,} waits are not known; nothing stands for them. To assume a law: "
            "`tlt trace convert FILE OUT --law wait_s=LAW`."
        )
    lines.append(
        f"Prompts: {prefixes.prompt_tokens:,} tokens, of which {prefixes.kept_share:.1%} were in a session's "
        f"context before; without a prefix cache {prefixes.reprefilled:.1f} times as much is prefilled."
    )
    if prefixes.shortened:
        lines.append(
            f"{prefixes.shortened:,} turns begin with less than the context before: it was shortened."
        )
    shared = prefixes.shared_share
    lines.append(
        "Prefixes that sessions share are not known: the file has no blocks."
        if shared is None
        else f"First prompts: {shared:.1%} of their tokens begin an earlier session's first prompt too."
    )
    return lines


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _law_figures(one: Quantity) -> str:
    parts = [] if one.values is None else [f"{one.values:,} values"]
    parts += [f"{one.cut:,} cut"] if one.cut else []
    parts += [f"{one.zero_share:.1%} zero"] if one.zero_share else []
    parts += [] if one.ks is None else [f"KS {one.ks:.3f}"]
    return ", ".join([*parts, f"correlation {one.correlation:.2f}"])
