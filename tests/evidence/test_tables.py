"""Cards and blocks made from evidence, and that the project's own pages are up to date."""

from __future__ import annotations

import datetime
import re
import shutil
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from evidence import measure, recording, tables
from evidence.recording import HERE, PROJECT, Earlier, Evidence, Figure, load_all, write
from evidence.rooms import rooms_table
from evidence.subjects import HEADLINES, TITLES, percent
from tlt.traces.runs.runfolder import write_json
from tltsched.errors import InputError

DOCUMENT = """# Title
Written like this in a text: `<!-- table: any -->`.

between
<!-- table: demo -->
old
<!-- /table -->
end
"""


def record(name: str, **changes: object) -> Evidence:
    example = Evidence(
        id=name,
        claim="a | b",
        value={"time": 12.3456},
        unit={"time": "s"},
        target="at most 30 s",
        met=True,
        how="measured: wall time",
        measured_on="two cores",
        command="tlt sim run",
        device="a laptop",
        versions={"python": "3.11"},
        date=datetime.date(2026, 1, 2),
    )
    return msgspec.structs.replace(example, **changes)


def a_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "evidence"
    folder.mkdir()
    write_json(folder / "speed.json", record("speed"))
    (folder / "demo.md").write_text("| demo |\n|:--|\n| 1 |\n")
    return folder


def all_records(**changed: Evidence) -> dict[str, Evidence]:
    return {name: changed.get(name, record(name)) for name in TITLES}


def test_the_pages_of_the_project_are_up_to_date() -> None:
    documents = (PROJECT / "README.md", *sorted((PROJECT / "docs").rglob("*.md")))
    others = tuple(path for path in documents if path != tables.CARDS)
    assert list(tables.stale(others, HERE, tables.CARDS)) == []


def test_every_claim_that_can_be_measured_has_a_record_that_says_how() -> None:
    records = load_all(HERE)
    commands = {entry.command for entry in records.values()}
    wanted = {
        f"python -m evidence.measure {name}" for name in measure.CLAIMS if name not in measure.ON_REQUEST
    }
    assert wanted - commands == set()
    assert set(HEADLINES) <= set(records)
    for entry in records.values():
        measured = re.search(r"python -m evidence\.(?:measure )?(\w+)", entry.command)
        assert measured is not None
        # what needs no engine is measured by `make evidence`, or by its name
        assert measured[1] in (*measure.CLAIMS, *measure.SCRIPTS, *measure.NEED_ENGINE)
        assert (PROJECT / "evidence" / f"{measured[1]}.py").is_file() or measured[1] in measure.CLAIMS
        assert entry.how.startswith(("measured", "modelled"))


def test_an_unknown_claim_is_refused_with_the_names_of_all() -> None:
    with pytest.raises(
        SystemExit, match=r"got nothing for CLAIM; allowed: published_cells, .*crosscheck_h100"
    ):
        measure.main(["nothing"])


def test_blocks_are_filled_and_filling_again_changes_nothing(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    text = tables.refreshed(DOCUMENT, folder)
    assert "old" not in text
    assert text.startswith("# Title\nWritten like this in a text: `<!-- table: any -->`.\n")
    assert text.endswith("<!-- /table -->\nend\n")
    assert "| demo |" in text
    assert tables.refreshed(text, folder) == text


@pytest.mark.parametrize(
    "text",
    [
        "<!-- table: demo -->\nno end\n",
        "<!-- /table -->\n",
        "<!-- table: demo -->\n<!-- /evidence -->\n",
        "<!-- evidence: unknown -->\n<!-- /evidence -->\n",
        "<!-- rooms: unknown -->\n<!-- /rooms -->\n",
        "<!-- table: unknown -->\n<!-- /table -->\n",
        "<!-- table: ../evidence/demo -->\n<!-- /table -->\n",
        "<!-- table: -->\n<!-- /table -->\n",
    ],
)
def test_bad_blocks_are_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError):
        tables.refreshed(text, a_folder(tmp_path))


def test_a_room_is_told_in_its_own_words(tmp_path: Path) -> None:
    for folder, text in {"a": "First | words\nof a.\n\nMore.", "a/b": "Of b."}.items():
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text(f'"""{text}"""\n')
    rows = rooms_table(tmp_path, ["a"]).splitlines()[2:]
    assert rows == ["| [a](../a) | First \\| words of a. |", "| [a/b](../a/b) | Of b. |"]
    (tmp_path / "a" / "b" / "__init__.py").write_text("")
    with pytest.raises(InputError, match="docstring"):
        rooms_table(tmp_path, ["a"])


def test_a_card_says_all_of_it_and_a_miss_is_named_first() -> None:
    missed = record("speed", met=False, value={"a": 0.5, "b": 2.0, "c": 3.0}, unit={"*": "s", "a": "share"})
    page = tables.cards(all_records(speed=missed))
    top, _, rest = page.partition(f'<a id="{next(iter(TITLES))}">')
    assert "## Missed: 1 of " in top
    assert f"**[{TITLES['speed']}](#speed)**: a 50.0 %; b 2; c 3 s. Target: at most 30 s." in top
    card = rest[rest.index('<a id="speed">') :].split("<a id=")[1]
    assert f"### {TITLES['speed']} (missed)" in card
    assert "| a | 50.0 % |" in card
    for text in (
        "**Met**: **NO**",
        "a \\| b",
        "two cores",
        "a laptop",
        "2026-01-02",
        "`tlt sim run`",
        "speed.json",
    ):
        assert text in card
    assert page.count("**Met**: yes") == len(TITLES) - 1


def test_every_measurement_before_is_told() -> None:
    before = Earlier(date=datetime.date(2026, 1, 1), value={"a": 0.9}, met=False, other="another lamp")
    page = tables.cards(
        all_records(speed=record("speed", earlier=(before,), value={"a": 1.0}, unit={"a": "share"}))
    )
    assert "- **Measured before**: 2026-01-01: a 90.0 % (missed; another lamp)" in page


def test_what_is_timed_again_keeps_what_was_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "HERE", tmp_path)
    facts = {"claim": "c", "unit": {"*": "s"}, "target": "t", "how": "measured", "measured_on": "a laptop"}
    write("speed", timed=True, value={"a": 2.0}, met=False, **facts)
    write("speed", timed=True, value={"a": 1.0}, met=True, **facts)
    write("speed", timed=True, value={"a": 1.0}, met=True, **facts)  # the same figures are no repeat
    found = load_all(tmp_path)["speed"]
    assert found.value == {"a": 1.0}
    assert [(each.value, each.met) for each in found.earlier] == [({"a": 2.0}, False)]
    write("speed", value={"a": 3.0}, met=True, **facts)  # computed, not timed: nothing was repeated
    assert len(load_all(tmp_path)["speed"].earlier) == 1


@pytest.mark.slow
@pytest.mark.parametrize("claim", ["training_forced", "head_served", "training_passes", "k0_tax"])
def test_a_record_of_a_committed_run_is_what_its_script_writes(
    claim: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(HERE / f"{claim}.json", tmp_path)
    monkeypatch.setattr(recording, "HERE", tmp_path)
    measure.main([claim])
    committed, made = load_all(HERE)[claim], load_all(tmp_path)[claim]
    for fact in ("claim", "value", "unit", "target", "met", "how", "measured_on", "command", "earlier"):
        assert getattr(made, fact) == getattr(committed, fact)


def test_no_target_is_neither_met_nor_missed() -> None:
    page = tables.cards(all_records(speed=record("speed", met=None)))
    assert f"## Missed: 0 of {len(TITLES) - 1} with a target" in page
    assert "**Met**: no target" in page


def test_a_record_without_a_heading_and_a_heading_without_a_record_are_refused() -> None:
    records = all_records()
    with pytest.raises(InputError, match="stranger"):
        tables.cards(records | {"stranger": record("stranger")})
    del records["speed"]
    with pytest.raises(InputError, match="speed"):
        tables.cards(records)


@pytest.mark.parametrize(
    ("figure", "unit", "text"),
    [
        (0.0241, "share of the step", "2.4 % of the step"),
        (0.0225, "share", "2.3 %"),
        (-0.1475, "share", "-14.8 %"),
        (1.0, "share", "100 %"),
        (2e-16, "share", "2.0e-16"),
        (1.594, "x", "1.59x"),
        (2013.0, "x", "2,013x"),
        (1.545, "x", "1.55x"),
        ((1.594, 1.416, 1.794), "x", "1.59x [1.42x, 1.79x]"),
        (1363277.0, "tokens", "1,363,277 tokens"),
        (0.0584, "s", "0.0584 s"),
        (1.0, "yes or no", "yes"),
    ],
)
def test_figures_are_written_for_people(figure: Figure, unit: str, text: str) -> None:
    assert tables.figure_text(figure, unit) == text


def test_percentages_round_halves_up() -> None:
    assert [percent(share) for share in (0.0125, 0.0135, 0.12345)] == ["1.3 %", "1.4 %", "12.3 %"]


@pytest.mark.parametrize(
    "bad",
    [record("other"), record("bad", raw="missing.csv"), record("bad", raw="../evidence/speed.json")],
)
def test_bad_records_are_refused(tmp_path: Path, bad: Evidence) -> None:
    folder = a_folder(tmp_path)
    write_json(folder / "bad.json", bad)
    with pytest.raises(InputError):
        load_all(folder)


@pytest.mark.parametrize("unit", [{}, {"speed": "s"}, {"time": "s", "speed": "s"}])
def test_each_figure_has_a_unit(unit: dict[str, str]) -> None:
    with pytest.raises(InputError, match="unit"):
        record("speed", unit=unit).__post_init__()


def test_unknown_fields_are_refused(tmp_path: Path) -> None:
    folder = a_folder(tmp_path)
    write_json(folder / "speed.json", msgspec.to_builtins(record("speed")) | {"extra": 1})
    with pytest.raises(InputError, match="extra"):
        load_all(folder)


def test_check_writes_nothing_and_fails_if_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "CARDS", tmp_path / "cards.md")
    document = tmp_path / "README.md"
    document.write_text(DOCUMENT)
    stale = CliRunner().invoke(tables.main, ["--check", str(document)])
    assert (stale.exit_code, document.read_text()) == (1, DOCUMENT)
    assert stale.output.count("not up to date") == 2
    assert CliRunner().invoke(tables.main, [str(document)]).exit_code == 0
    assert CliRunner().invoke(tables.main, ["--check", str(document)]).exit_code == 0


def test_errors_name_what_is_wrong(tmp_path: Path) -> None:
    document = tmp_path / "README.md"
    document.write_text("<!-- evidence: unknown -->\n<!-- /evidence -->\n")
    result = CliRunner().invoke(tables.main, [str(document)])
    assert result.exit_code == 1
    assert f"got 'unknown' for evidence block in {document}" in result.output
