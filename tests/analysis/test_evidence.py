import datetime
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from evidence.tables import Evidence, load_all, main, refresh, render_table
from tlt.traces.runs.runfolder import write_json
from tltsched.errors import InputError

DOCUMENT = """# Title
Written like this in a text: `<!-- evidence: any -->`.

<!-- evidence: speed error -->
old
<!-- /evidence -->
between
<!-- table: demo -->
<!-- /table -->
end
"""


def _record(name: str, **changes: object) -> Evidence:
    record = Evidence(
        id=name,
        claim="a | b",
        value=12.3456,
        unit="s",
        target="<= 30 s",
        met=True,
        how="measured: wall time",
        command="tlt sim run",
        device="2 cores",
        versions={"python": "3.11"},
        date=datetime.date(2026, 1, 2),
    )
    return msgspec.structs.replace(record, **changes)


def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "evidence"
    folder.mkdir()
    write_json(folder / "speed.json", _record("speed"))
    write_json(
        folder / "error.json", _record("error", value={"mean": 0.5, "max": 1200.0}, unit="%", met=False)
    )
    (folder / "demo.md").write_text("| demo |\n|:--|\n| 1 |\n")
    return folder


def test_blocks_are_filled_and_filling_again_changes_nothing(tmp_path: Path) -> None:
    folder, document = _folder(tmp_path), tmp_path / "README.md"
    document.write_text(DOCUMENT)
    assert refresh(document, folder)
    text = document.read_text()
    assert "old" not in text
    assert text.startswith("# Title\nWritten like this in a text: `<!-- evidence: any -->`.\n")
    assert "between\n" in text
    assert text.endswith("<!-- /table -->\nend\n")
    assert "| a \\| b" in text
    assert "12.35 s" in text
    assert "mean 0.5000, max 1,200 %" in text
    assert "| demo |" in text
    assert text.index("12.35 s") < text.index("mean 0.5000")
    assert not refresh(document, folder)


@pytest.mark.parametrize(
    "text",
    [
        "<!-- evidence: speed -->\nno end\n",
        "<!-- /table -->\n",
        "<!-- evidence: speed -->\n<!-- /table -->\n",
        "<!-- evidence: unknown -->\n<!-- /evidence -->\n",
        "<!-- table: unknown -->\n<!-- /table -->\n",
        "<!-- table: ../evidence/demo -->\n<!-- /table -->\n",
        "<!-- table: -->\n<!-- /table -->\n",
    ],
)
def test_bad_blocks_are_refused_and_nothing_is_written(tmp_path: Path, text: str) -> None:
    folder, document = _folder(tmp_path), tmp_path / "README.md"
    document.write_text(text)
    with pytest.raises(InputError):
        refresh(document, folder)
    assert document.read_text() == text


def test_records_are_read_in_order_of_id(tmp_path: Path) -> None:
    records = load_all(_folder(tmp_path))
    assert list(records) == ["error", "speed"]
    assert records["speed"] == _record("speed")
    assert render_table(records, ["speed"]).count("\n") == 3


@pytest.mark.parametrize(
    "record",
    [_record("other"), _record("bad", raw="missing.csv"), _record("bad", raw="../evidence/speed.json")],
)
def test_bad_records_are_refused(tmp_path: Path, record: Evidence) -> None:
    folder = _folder(tmp_path)
    write_json(folder / "bad.json", record)
    with pytest.raises(InputError):
        load_all(folder)


def test_unknown_fields_are_refused(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    write_json(folder / "speed.json", msgspec.to_builtins(_record("speed")) | {"extra": 1})
    with pytest.raises(InputError, match="extra"):
        load_all(folder)


def test_check_writes_nothing_and_fails_if_stale(tmp_path: Path) -> None:
    folder, document = _folder(tmp_path), tmp_path / "README.md"
    document.write_text(DOCUMENT)
    arguments = ["--folder", str(folder), str(document)]
    stale = CliRunner().invoke(main, ["--check", *arguments])
    assert (stale.exit_code, document.read_text()) == (1, DOCUMENT)
    assert "not up to date" in stale.output
    assert CliRunner().invoke(main, arguments).exit_code == 0
    assert CliRunner().invoke(main, ["--check", *arguments]).exit_code == 0


def test_errors_name_the_document(tmp_path: Path) -> None:
    folder, document = _folder(tmp_path), tmp_path / "README.md"
    document.write_text("<!-- evidence: unknown -->\n<!-- /evidence -->\n")
    result = CliRunner().invoke(main, ["--folder", str(folder), str(document)])
    assert result.exit_code == 1
    assert "README.md: got 'unknown' for evidence id" in result.output
