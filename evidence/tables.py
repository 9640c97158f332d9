"""Evidence: one JSON file a claim, and the tables of the documents generated from them.

A document says where a table stands and which claims it holds, each marker on a line of its own:

    <!-- evidence: id1 id2 -->         a table of these records
    <!-- /evidence -->
    <!-- table: NAME -->               the text of NAME.md beside the records
    <!-- /table -->

`python -m evidence.tables README.md docs/*.md` rewrites what stands between the markers; with `--check` it
writes nothing and exits with 1 if a document is not up to date.
"""

from __future__ import annotations

import datetime
import re
from pathlib import Path

import click
import msgspec

from tlt.analysis.comparison.tables import markdown_rows, number
from tlt.traces.runs.runfolder import read_struct
from tltsched.errors import InputError

Figure = float | list[float] | dict[str, float]

_BLOCK = re.compile(
    r"^<!-- (?P<kind>evidence|table):(?P<names>[^\n]*?)-->[ \t]*\n(?P<body>.*?)^<!-- /(?P=kind) -->[ \t]*$",
    re.MULTILINE | re.DOTALL,
)
_MARKER = re.compile(r"^<!-- /?(?:evidence|table)\b.*$", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


class Evidence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One claim with its figure and everything that is needed to measure it again."""

    id: str  # the file's name without .json
    claim: str
    value: Figure
    unit: str
    target: str  # in words: what was aimed at
    met: bool
    how: str  # measured, published, modelled or assumed, and by what method
    command: str
    device: str
    versions: dict[str, str]
    date: datetime.date
    raw: str | None = None  # file beside this one that holds the raw points


def load_all(folder: Path) -> dict[str, Evidence]:
    """Read every *.json of a folder, by id in order of id.

    Raises InputError if a file is malformed, its id is not its name, or its raw file is missing.
    """
    records = {}
    for path in sorted(folder.glob("*.json")):
        record = read_struct(path, Evidence)
        if record.id != path.stem:
            raise InputError(f"id in {path}", record.id, path.stem, "name the file after the id")
        if record.raw is not None and not (
            Path(record.raw).name == record.raw and (folder / record.raw).is_file()
        ):
            raise InputError(f"raw in {path}", record.raw, "the name of a file beside it", "add the file")
        records[record.id] = record
    return records


def render_table(records: dict[str, Evidence], ids: list[str]) -> str:
    """Return a Markdown table of these records, in this order; raises InputError for an id without one."""
    unknown = [name for name in ids if name not in records]
    if unknown:
        raise InputError("evidence id", ", ".join(unknown), ", ".join(records) or "none", "add the record")
    headers = ("Claim", "Result", "Target", "Met", "How", "Device, date")
    rows = [_cells(records[name]) for name in ids]
    return markdown_rows(headers, rows, figures=0)


def refreshed(text: str, folder: Path) -> str:
    """Return a document's text with every block filled from `folder`.

    Raises InputError for a marker without its partner, an unknown id or a missing table.
    """
    records = load_all(folder)
    outside = _BLOCK.sub("", text)
    stray = _MARKER.search(outside)
    if stray:
        raise InputError(
            "marker", stray.group(), "a pair of markers on lines of their own", "close the block"
        )

    def fill(block: re.Match[str]) -> str:
        kind, names = block["kind"], block["names"].split()
        body = render_table(records, names) if kind == "evidence" else _table(folder, names)
        return f"<!-- {kind}: {' '.join(names)} -->\n\n{body.strip()}\n\n<!-- /{kind} -->"

    return _BLOCK.sub(fill, text)


def refresh(document: Path, folder: Path) -> bool:
    """Rewrite the blocks of a document in place; return whether its text changed."""
    before = document.read_text(encoding="utf-8")
    after = refreshed(before, folder)
    if after != before:
        document.write_text(after, encoding="utf-8")
    return after != before


def _cells(record: Evidence) -> tuple[str, ...]:
    return (
        record.claim,
        _figure(record.value, record.unit),
        record.target,
        "yes" if record.met else "no",
        f"{record.how} `{record.command}`" if record.command else record.how,
        f"{record.device}, {record.date.isoformat()}",
    )


def _figure(value: Figure, unit: str) -> str:
    if isinstance(value, dict):
        text = ", ".join(f"{name} {_short(part)}" for name, part in value.items())
    elif isinstance(value, list):
        text = ", ".join(_short(part) for part in value)
    else:
        text = _short(value)
    return f"{text} {unit}".strip()


def _short(value: float) -> str:
    """Return whole numbers as such and others with four significant digits."""
    if value == int(value) and abs(value) < 1e12:
        return f"{int(value):,}"
    return number(value) if abs(value) >= 1e-3 else f"{value:.2e}"


def _table(folder: Path, names: list[str]) -> str:
    name = names[0] if len(names) == 1 else " ".join(names)
    if not _NAME.fullmatch(name) or not (folder / f"{name}.md").is_file():
        known = ", ".join(path.stem for path in sorted(folder.glob("*.md"))) or "none"
        raise InputError("table", name, known, f"write {folder}/NAME.md first")
    return (folder / f"{name}.md").read_text(encoding="utf-8")


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit with 1 if a document is not up to date.")
@click.option(
    "--folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path("evidence/records"),
    show_default=True,
    help="Where the records are.",
)
@click.argument(
    "documents", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
def main(check: bool, folder: Path, documents: tuple[Path, ...]) -> None:
    """Fill the evidence tables of DOCUMENTS from the records."""
    stale = []
    for document in documents:
        try:
            if check:
                text = document.read_text(encoding="utf-8")
                changed = refreshed(text, folder) != text
            else:
                changed = refresh(document, folder)
        except InputError as error:
            raise click.ClickException(f"{document}: {error}") from None
        if changed:
            stale.append(document)
            click.echo(f"{document}: {'not up to date' if check else 'rewritten'}")
    if check and stale:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
