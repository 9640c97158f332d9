import io
import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from tests.analysis.fake_run import with_summary, write_comparison, write_run
from tlt.analysis import report
from tlt.analysis.ledger import AccountingError
from tlt.analysis.report import present, write_report
from tlt.traces.runs.runfolder import CAUSES, RunFolder, write_json

EVIL = '<script>alert("x")</script>'
VOID = {"meta", "img", "br", "link", "input"}


class _Page(HTMLParser):
    """Collects tags and addresses, and checks that every element is closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def _parse(path: Path) -> tuple[_Page, str]:
    text = path.read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    assert page.open == []
    return page, text


@pytest.mark.slow
def test_report_of_a_comparison_is_one_file_with_everything(tmp_path: Path) -> None:
    path = write_report(write_comparison(tmp_path, steps=12))
    assert path == tmp_path / "report.html"
    page, text = _parse(path)
    assert page.tags.count("svg") == 5
    assert page.tags.count("script") == 4
    assert all(address.startswith(("#", "data:image/png;base64,")) for address in page.addresses)
    assert text.index("Run goodput") < text.index("<table")
    assert "Rewards take no time: assumed." in text
    assert "$" not in text.split("<h1>")[1].split("<pre>")[0]
    for _, meaning in CAUSES.values():
        assert meaning in text
    assert sorted(file.name for file in (tmp_path / "pictures").iterdir()) == [
        "by_step.png",
        "gantt.png",
        "ledger.png",
        "lengths.png",
        "running.png",
    ]
    assert all((tmp_path / policy / "trace.json").is_file() for policy in ("none", "tlt", "goodput"))


@pytest.mark.slow
def test_names_warnings_and_settings_are_escaped(tmp_path: Path) -> None:
    folder = write_run(
        tmp_path, name=EVIL, policy=EVIL, warnings=(EVIL,), config={"key": f"{EVIL} $title ${{answer}}"}
    )
    write_json(folder.path / "summary.json", with_summary(folder, model=EVIL, gpu=EVIL, cost_source=EVIL))
    page, text = _parse(write_report(tmp_path))
    assert page.tags.count("script") == 4  # its own
    assert "&lt;script&gt;" in text
    assert "$title ${answer}" in text


@pytest.mark.slow
def test_reports_are_reproducible(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    first = write_report(folder.path).read_bytes()
    trace = (tmp_path / "trace.json").read_bytes()
    assert write_report(folder.path).read_bytes() == first
    assert (tmp_path / "trace.json").read_bytes() == trace


@pytest.mark.slow
def test_present_prints_the_table_the_verdict_and_the_paths(tmp_path: Path) -> None:
    folder = write_comparison(tmp_path, {"none": {"speed": 1.0}, "[red]x": {"speed": 2.0}}, steps=12)
    console = Console(width=80, record=True, file=io.StringIO())
    present(folder, console)
    text = console.export_text()
    assert "Run [red]x" in text
    assert "GPU time adds up" in text
    assert f"report: {folder / 'report.html'}" in text
    assert f"pictures: {folder / 'pictures'}" in text
    assert max(len(line) for line in text.splitlines() if not line.startswith(("report", "pict"))) <= 80


def test_nothing_is_written_if_the_gpu_time_does_not_add_up(tmp_path: Path) -> None:
    write_comparison(tmp_path)
    folder = RunFolder(tmp_path / "tlt")
    folder.write(folder.summary(), folder.responses(), folder.intervals().iloc[1:], folder.steps())
    with pytest.raises(AccountingError):
        write_report(tmp_path)
    assert not (tmp_path / "report.html").exists()
    assert not (tmp_path / "none" / "trace.json").exists()


@pytest.mark.slow
def test_the_runs_of_a_folder_share_one_budget_of_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What keeps all steps of three runs keeps a part of each with a budget for one of them."""

    def kept() -> set[str]:
        write_report(tmp_path)
        paths = sorted(tmp_path.glob("*/trace.json"))
        assert len(paths) == 3
        return {json.loads(path.read_bytes())["otherData"]["kept"] for path in paths}

    write_comparison(tmp_path, steps=12)
    assert kept() == {"all steps"}
    events = len(json.loads((tmp_path / "none" / "trace.json").read_bytes())["traceEvents"])
    monkeypatch.setattr(report, "TRACE_EVENTS", events)
    assert all(each.startswith("steps 0 to ") and each.endswith(" of 12") for each in kept())


@pytest.mark.slow
def test_a_run_without_settings_says_so(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    (folder.path / "resolved_config.json").unlink()
    assert "no resolved_config.json" in write_report(tmp_path).read_text(encoding="utf-8")
