"""Pages made from evidence: a card a claim in docs/evidence/README.md, and blocks inside other documents.

A document says where something stands, each marker on a line of its own:

    <!-- evidence: headlines -->       the claims that decide trust, a line each, and how many were missed
    <!-- /evidence -->
    <!-- table: NAME -->               the text of NAME.md beside the records
    <!-- /table -->
    <!-- rooms: PACKAGE ... -->        their folders, each with the sentence of its `__init__.py`
    <!-- /rooms -->
    <!-- keys: FRAMEWORK -->           what the keys of its metrics mean
    <!-- /keys -->
    <!-- regimes: -->                  what was held against a live engine, regime by regime
    <!-- /regimes -->

`python -m evidence.tables README.md docs/*.md docs/evidence/*.md` rewrites what stands between the markers
and the page of cards; with `--check` it writes nothing and exits with 1 if something is not up to date.
"""

from __future__ import annotations

import re
from pathlib import Path

import click
import msgspec

from evidence.metric_keys import keys_table
from evidence.recording import HERE, PROJECT, Evidence, Figure, load_all
from evidence.regimes_page import page
from evidence.rooms import rooms_table
from evidence.subjects import HEADLINES, MAY_LACK, SUBJECTS, TITLES, percent, times
from tltsched.errors import InputError

PAGE = "docs/evidence/README.md"
CARDS = PROJECT / PAGE
FEW = 2  # figures that are told in a row on a card; more of them make a table
MOST = 3  # figures of a miss that are named at the top
_BLOCK = re.compile(
    r"^<!-- (?P<kind>evidence|table|rooms|keys|regimes):(?P<name>[^\n]*?)-->[ \t]*\n"
    r"(?P<body>.*?)^<!-- /(?P=kind) -->[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_MARKER = re.compile(r"^<!-- /?(?:evidence|table|rooms|keys|regimes)\b.*$", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_INTRODUCTION = """# Evidence: a card a claim

Made by `python -m evidence.tables` from the records in `evidence/records/`; do not edit it. Each card says
what was claimed, what came out, what was aimed at, and on which device. *Measured* figures were timed on a
live engine, *published* ones are others', *modelled* ones come out of the simulator, *assumed* ones are
nobody's. A command measures its claim again, from the root of the project; those that replay a committed run
(`evidence/runs/`) need no GPU.
"""


def cards(records: dict[str, Evidence]) -> str:
    """Return the page of cards, misses first; raises InputError for a record that it does not list."""
    unlisted = [name for name in records if name not in TITLES]
    absent = [name for name in TITLES if name not in records and name not in MAY_LACK]
    if unlisted or absent:
        got = ", ".join(unlisted + absent)
        raise InputError("evidence id", got, "a record and a heading for each", "see evidence/subjects.py")
    missed = [name for name in TITLES if name in records and records[name].met is False]
    aimed = sum(record.met is not None for record in records.values())
    lines = [_INTRODUCTION, f"## Missed: {len(missed)} of {aimed} with a target", ""]
    lines += [
        f"- **{_link(name)}**: {_inline(records[name], MOST)}. Target: {records[name].target}."
        for name in missed
    ]
    for subject, claims in SUBJECTS.items():
        lines += ["", f"## {subject}"]
        for name in claims:
            lines += ["", _card(records[name])] if name in records else []
    return "\n".join(lines) + "\n"


def headlines(records: dict[str, Evidence]) -> str:
    """Return a line for each claim of HEADLINES: what came out, met or missed, on which device."""
    lines = []
    for name, sentence in HEADLINES.items():
        record = records[name]
        verdict = "Target met" if record.met else "Target missed"
        device = f"Device: {record.measured_on}"
        lines.append(f"- {sentence(record)}. {device}. **{verdict}**, [card]({PAGE}#{name}).")
    missed = sum(record.met is False for record in records.values())
    aimed = sum(record.met is not None for record in records.values())
    lines += [
        "",
        f"[All {len(records)} cards]({PAGE}): {missed} of {aimed} targets missed, named first there.",
    ]
    return "\n".join(lines)


def refreshed(text: str, folder: Path) -> str:
    """Return a document's text with every block filled from `folder`.

    Raises InputError for a marker without its partner, an unknown block or a missing table.
    """
    outside = _BLOCK.sub("", text)
    stray = _MARKER.search(outside)
    if stray:
        raise InputError(
            "marker", stray.group(), "a pair of markers on lines of their own", "close the block"
        )

    def fill(block: re.Match[str]) -> str:
        kind, name = block["kind"], block["name"].strip()
        body = BLOCKS[kind](folder, name)
        opening = f"<!-- {kind}: {name} -->".replace("  ", " ")
        return f"{opening}\n\n{body.strip()}\n\n<!-- /{kind} -->"

    return _BLOCK.sub(fill, text)


def _evidence(folder: Path, name: str) -> str:
    if name != "headlines":
        raise InputError("evidence block", name, "headlines", "cards have a page of their own")
    return headlines(load_all(folder))


def _rooms(folder: Path, name: str) -> str:
    del folder  # of the records
    return rooms_table(PROJECT, name.split())


def _keys(folder: Path, name: str) -> str:
    del folder  # of the records
    return keys_table(name)


def _regimes(folder: Path, name: str) -> str:
    del name  # all of them
    return page(folder)


def _table(folder: Path, name: str) -> str:
    if not _NAME.fullmatch(name) or not (folder / f"{name}.md").is_file():
        known = ", ".join(path.stem for path in sorted(folder.glob("*.md"))) or "none"
        raise InputError("table", name, known, f"write {folder}/NAME.md first")
    return (folder / f"{name}.md").read_text(encoding="utf-8")


BLOCKS = {"evidence": _evidence, "table": _table, "rooms": _rooms, "keys": _keys, "regimes": _regimes}


def _card(record: Evidence) -> str:
    name = record.id
    met = {True: "yes", False: "**NO**", None: "no target"}[record.met]
    few = len(record.value) <= FEW
    facts = {
        "Claim": _plain(record.claim),
        "Result": _inline(record) if few else "",
        "Target": record.target,
        "Met": met,
        **({"Measured before": _earlier(record)} if record.earlier else {}),
        "How": _plain(record.how),
        "Device": record.measured_on,
        "Recorded": f"{record.date.isoformat()}, {record.device}",
        "Again": f"`{record.command}`",
        "Record": _record_links(record),
    }
    lines = [
        f'<a id="{name}"></a>',
        "",
        f"### {TITLES[name]}{' (missed)' if record.met is False else ''}",
        "",
    ]
    for fact, text in facts.items():
        if fact == "Result" and not few:
            lines += ["- **Result**:", "", *_figures_table(record), ""]
        else:
            lines.append(f"- **{fact}**: {text}")
    return "\n".join(lines)


def _earlier(record: Evidence) -> str:
    """Return every earlier measurement: its date, figures, verdict and what was otherwise."""
    told = []
    for before in record.earlier:
        figures = msgspec.structs.replace(record, value=before.value, unit=_units_of(record, before.value))
        met = {True: "met", False: "missed", None: "no target"}[before.met]
        other = f"; {_plain(before.other)}" if before.other else ""
        told.append(f"{before.date.isoformat()}: {_inline(figures)} ({met}{other})")
    return ". ".join(told)


def _units_of(record: Evidence, value: dict[str, Figure]) -> dict[str, str]:
    return {name: record.unit_of(name) for name in value}


def _figures_table(record: Evidence) -> list[str]:
    """Return a table of the figures, indented as part of a list's item."""
    rows = [
        f"| {_plain(name)} | {figure_text(value, record.unit_of(name))} |"
        for name, value in record.value.items()
    ]
    return [f"  {row}" for row in ("| figure | value |", "|:--|--:|", *rows)]


def _inline(record: Evidence, most: int | None = None) -> str:
    """Return the first `most` figures in a row; a unit is told behind the last figure that has it."""
    figures = list(record.value.items())[:most]
    units = [record.unit_of(name) for name, _ in figures]
    texts = [
        f"{_plain(name)} {figure_text(value, unit, suffix=unit != following)}"
        for (name, value), unit, following in zip(figures, units, [*units[1:], None], strict=True)
    ]
    left_out = len(record.value) - len(figures)
    return "; ".join(texts) + (f" ({left_out} more on the card)" if left_out else "")


def figure_text(figure: Figure, unit: str, suffix: bool = True) -> str:
    """Return a figure as people read it: 2.4 %, 1.59x [1.42x, 1.79x], 27,481 tokens."""
    if isinstance(figure, tuple):
        value, low, high = (_short(part, unit) for part in figure)
        text = f"{value} [{low}, {high}]"
    else:
        text = _short(figure, unit)
    return text + _suffix(unit) if suffix else text


def _short(value: float, unit: str) -> str:
    if unit == "yes or no":
        return "yes" if value else "no"
    if unit.startswith("share"):
        return percent(value)
    if unit == "x":
        return times(value)
    if value == int(value) and abs(value) < 1e12:
        return f"{int(value):,}"
    return f"{value:,.4g}" if abs(value) >= 1e-3 else f"{value:.1e}"


def _suffix(unit: str) -> str:
    """Return what stands behind a figure: a share is a percentage of what its unit names."""
    if unit in ("yes or no", "x", "share", ""):
        return ""
    return f" {unit.removeprefix('share ')}"


def _record_links(record: Evidence) -> str:
    names = [f"{record.id}.json"] + ([record.raw] if record.raw else [])
    return ", ".join(f"[{name}](../../evidence/records/{name})" for name in names)


def _link(name: str) -> str:
    return f"[{TITLES[name]}](#{name})"


def _plain(text: str) -> str:
    """Return text that a table of Markdown can hold."""
    return text.replace("|", "\\|").replace("\n", " ")


def _refreshed_file(document: Path, folder: Path) -> str:
    try:
        return refreshed(document.read_text(encoding="utf-8"), folder)
    except InputError as error:
        raise InputError(f"{error.field} in {document}", error.got, error.allowed, error.fix) from None


def stale(documents: tuple[Path, ...], folder: Path, page: Path) -> dict[Path, str]:
    """Return the documents that are not up to date, and what they should say."""
    wanted = {document: _refreshed_file(document, folder) for document in documents}
    wanted[page] = cards(load_all(folder))
    return {
        path: text
        for path, text in wanted.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    }


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if something is not up to date.")
@click.argument("documents", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(check: bool, documents: tuple[Path, ...]) -> None:
    """Make the page of cards, and fill the blocks of DOCUMENTS, from the records."""
    try:
        changed = stale(tuple(path for path in documents if path.resolve() != CARDS), HERE, CARDS)
    except InputError as error:
        raise click.ClickException(str(error)) from None
    for path, text in changed.items():
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        click.echo(f"{path}: {'not up to date' if check else 'rewritten'}")
    if check and changed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
