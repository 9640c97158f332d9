"""The commands of bring-your-run.md, frameworks and tutorial.md in docs, run as written in a new folder."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tlt.commands import main

PROJECT = Path(__file__).resolve().parents[1]
PAGES = [PROJECT / "docs/bring-your-run.md", *sorted((PROJECT / "docs/frameworks").glob("*.md"))]
RUN = [*PAGES, PROJECT / "docs/sessions.md"]
TUTORIAL = PROJECT / "docs/tutorial.md"
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHOWN = re.compile(r"^```(bash|toml|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ENDS_WITH = re.compile(r"# ends with (\d)")
FRAMEWORKS = {
    "areal", "engine-logs", "nemo-rl", "openrlhf", "prime-rl", "requests", "roll", "serving-traces",
    "sglang-bench", "skyrl", "slime", "trl", "verl", "vllm-bench",
}  # fmt: skip
# Pictures and draws take most of the time of this command, and are tested where they are made.
QUICK = {"counterfactual": ["--no-report", "--draws", "0"]}


def commands(block: str) -> list[tuple[list[str], int]]:
    """Return the commands of a block with the exit code that each should have."""
    lines, code = [], 0
    for line in block.replace("\\\n", " ").splitlines():
        ending = ENDS_WITH.match(line)
        if ending:
            code = int(ending[1])
        elif line.strip() and not line.startswith("#"):
            lines.append((shlex.split(line), code))
            code = 0
    return lines


def run_command(words: list[str], code: int) -> str:
    """Run a command, hold it to its exit code, and return what it printed."""
    if words[:2] == ["mkdir", "-p"]:
        Path(words[2]).mkdir(parents=True, exist_ok=True)
        return ""
    assert words[0] == "tlt", words
    done = CliRunner().invoke(main.cli, words[1:])
    assert done.exit_code == code, f"{' '.join(words)}\n{done.output}\n{done.exception!r}"
    return done.output


@pytest.mark.slow
@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_a_page_does_what_it_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("traces", "realrun"):
        (tmp_path / name).symlink_to(PROJECT / name)
    export_tokens(tmp_path)
    blocks = 2 * BLOCK.findall(page.read_text(encoding="utf-8"))  # a second time over what the first left
    ran = 0
    for language, block in blocks:
        if language == "python" and block.startswith("import"):
            subprocess.run([sys.executable, "-c", block], check=True)
        elif language == "bash":
            for words, code in commands(block):
                run_command([*words, *QUICK.get(words[2], [])], code)
                ran += words[0] == "tlt"
    assert ran >= 2 * 4


@pytest.mark.slow
def test_the_tutorial_prints_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    (tmp_path / "examples").symlink_to(PROJECT / "examples")
    text = TUTORIAL.read_text(encoding="utf-8")
    job = (PROJECT / "examples/job.toml").read_text(encoding="utf-8")
    printed, shown = "", 0
    for language, block in SHOWN.findall(text):
        if language == "bash":
            printed = _plain("".join(run_command(words, code) for words, code in commands(block)))
        elif language == "toml":
            assert _plain(block) in _plain(job)
        else:
            for part in (part for line in block.splitlines() for part in line.split("[...]")):
                assert _plain(part) in printed, part
                shown += 1
    assert shown > 20


def _plain(text: str) -> str:
    """Return text with any run of spaces and line ends as one space."""
    return " ".join(text.split())


def export_tokens(folder: Path) -> None:
    """Write what prime-rl's token export writes, as its page describes it."""
    rows = [
        {"step": 3, "token_ids": [1] * 9, "loss_mask": [0] * 4 + [1] * 5},
        {"step": 3, "loss_mask": [0, 0]},
    ]
    file = folder / "token_exports/step_3/rank_0.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def test_the_lengths_of_a_token_export_are_those_of_its_mask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    export_tokens(tmp_path)
    page = (PROJECT / "docs/frameworks/prime-rl.md").read_text(encoding="utf-8")
    code = next(block for language, block in BLOCK.findall(page) if language == "python")
    subprocess.run([sys.executable, "-c", code], check=True)
    rows = [json.loads(line) for line in Path("out/prime-rl.jsonl").read_text(encoding="utf-8").splitlines()]
    assert rows == [{"step": 3, "prompt_tokens": 4, "response_tokens": 5}]


def test_every_framework_has_a_page_and_every_page_is_listed() -> None:
    assert {page.stem for page in PAGES[1:]} == FRAMEWORKS
    listed = PAGES[0].read_text(encoding="utf-8")
    assert [page.name for page in PAGES[1:] if f"(frameworks/{page.name})" not in listed] == []


def test_every_sample_is_used() -> None:
    text = PAGES[0].read_text(encoding="utf-8")
    samples = PROJECT / "traces/importers/samples"
    names = [path.name for path in samples.iterdir() if path.name != "README.md"]
    assert [name for name in names if f"traces/importers/samples/{name}" not in text] == []
