"""README and docs say what is so: each command line parses, links lead somewhere, README stays short."""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from tlt.commands import main
from tlt.sim.sweep.grid import split
from tltsched.policies import parse_policy
from tltsched.schedules import parse_schedule
from tltsched.written.policy_name import PolicyName

PROJECT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    {
        PROJECT / "README.md",
        PROJECT / "CONTRIBUTING.md",
        PROJECT / "CHANGELOG.md",
        *(PROJECT / "docs").rglob("*.md"),
        *(PROJECT / "evidence").rglob("README.md"),
        *(PROJECT / "examples").rglob("README.md"),
    }
)
README_LINES = 130
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^ {4}.*\S.*\n)+", re.MULTILINE)
INLINE = re.compile(r"`(tlt\s[^`]+)`")
PATH = re.compile(r"`((?:analysis|docs|evidence|examples|realrun|sim|tests|tlt|tltsched|traces)/[\w./-]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FOLDERS = ("analysis", "docs", "evidence", "examples", "realrun", "sim", "traces")
OLD = ("--arms", "sim retrain", "docs/evidence/measure", "realrun/data", "evidence/records/published/")


def command_lines(text: str) -> list[list[str]]:
    """Return the words of each command line of `tlt` in the blocks of a page."""
    blocks = [body for language, body in FENCED.findall(text) if language in ("bash", "sh", "")]
    blocks += INDENTED.findall(FENCED.sub("", text))
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    parts = [part for line in lines for part in re.split(r"&&", line)]
    commands = [shlex.split(part, comments=True) for part in parts if part.strip().startswith("tlt ")]
    return [words[1:] for words in commands]


def inline_commands(text: str) -> list[list[str]]:
    """Return the words of each command that is named inside a sentence."""
    return [found.split()[1:] for found in INLINE.findall(FENCED.sub("", text))]


def resolved(words: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    """Return the command that these words call, its context, and the words that are left."""
    command: click.Command = main.cli
    context = click.Context(command, info_name="tlt", **command.context_settings)
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        command.parse_args(context, list(words))  # a group may put in the command that is meant
        words = [*context._protected_args, *context.args]
        _, found, words = command.resolve_command(context, words)
        assert found is not None
        command = found
        context = click.Context(command, parent=context, info_name=command.name)
    return command, context, words


def check_command(words: list[str]) -> None:
    """Fail for unknown commands, options and values, too few or many arguments, and missing project files."""
    command, context, rest = resolved(words)
    assert not isinstance(command, click.Group), f"{words}: which command?"
    values, surplus, _ = command.make_parser(context).parse_args(list(rest))
    assert surplus == []
    for parameter in command.get_params(context):
        given = values.get(parameter.name or "")
        if given is None or repr(given).startswith("Sentinel"):
            assert not parameter.required, f"{parameter.name} is missing"
            continue
        if not isinstance(parameter.type, click.Path):
            parameter.type_cast_value(context, given)
        if parameter.name == "assignments":
            check_assignments(words[0], given)
    for word in rest:
        for part in word.removeprefix("./").split("="):
            if part.split("/")[0] in FOLDERS and "/" in part:
                assert (PROJECT / part).exists(), part


@cache
def fields(world: str) -> frozenset[str]:
    """Return the names of the settings of `sim` or `real`, groups of them included."""
    listed = CliRunner().invoke(main.cli, [world, "fields"]).output
    names = re.findall(r"^([a-z_.]+) = ", listed, re.MULTILINE)
    return frozenset(".".join(name.split(".")[:depth]) for name in names for depth in range(1, 5))


def check_assignments(world: str, assignments: list[str]) -> None:
    for assignment in assignments:
        assert assignment.split("=")[0] in fields(world), assignment


def check_policies(words: list[str]) -> None:
    """Fail for a policy or schedule that does not exist; `kstar` and `export` take draft configurations."""
    if "--policies" not in words or {"kstar", "export"} & set(words):
        return
    for name in split(words[words.index("--policies") + 1]):
        parsed = PolicyName.parse(name)
        parse_policy(parsed.policy)
        if parsed.schedule:
            parse_schedule(parsed.schedule)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(PROJECT).as_posix())
def test_each_command_line_is_one_that_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for words in command_lines(text):
        check_command(words)
        check_policies(words)
    for words in inline_commands(text) if page.name != "CHANGELOG.md" else ():  # which names old ones too
        command, context, rest = resolved([word for word in words if word != "..."])
        names = {name for parameter in command.get_params(context) for name in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= names | {"--help"}, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(PROJECT).as_posix())
def test_links_make_targets_and_modules_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in LINK.findall(FENCED.sub("", text)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), target
    makefile = (PROJECT / "Makefile").read_text(encoding="utf-8")
    for name in re.findall(r"(?:`|^    )make ([a-z]+)", text, re.MULTILINE):
        assert f"\n{name}:" in makefile, name
    if page.name != "CHANGELOG.md":
        assert [path for path in PATH.findall(text) if not (PROJECT / path).exists()] == []
        assert [word for word in OLD if word in text] == []
    for module in re.findall(r"python -m evidence\.(\w+)", text):
        assert module == "X" or (PROJECT / "evidence" / f"{module}.py").is_file(), module


def anchors(page: Path) -> set[str]:
    """Return what a link into a page may name: its ids, and its headings as code hosts spell them."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


def test_readme_is_short_and_no_line_hides_a_table() -> None:
    lines = (PROJECT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= README_LINES
    assert max(map(len, lines)) <= 400


def test_every_picture_is_shown() -> None:
    shown = {target.rpartition("/")[2] for page in PAGES for target in LINK.findall(page.read_text("utf-8"))}
    assert {picture.name for picture in (PROJECT / "docs/pictures").iterdir()} - shown == set()


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_python_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lengths = "\n".join(str(100 + 37 * place % 1900) for place in range(200))
    Path("lengths.csv").write_text(f"response_tokens\n{lengths}\n", encoding="utf-8")
    Path("job.toml").write_text(
        '[hardware]\ngpus = 2\ntp = 1\nmodel = "Qwen2.5-7B"\n[cost]\nsource = "vllm-0.32-h100-qwen2.5-7b"\n'
        '[acceptance]\nkind = "geometric"\n'
        "[workload]\nsteps = 2\nprompts_per_step = 8\nsamples_per_prompt = 2\n",
        encoding="utf-8",
    )
    text = (PROJECT / page).read_text(encoding="utf-8")
    (block,) = [body for language, body in FENCED.findall(text) if language == "python"]
    names: dict[str, Any] = {}
    exec(compile(block, page, "exec"), names)  # noqa: S102
    table = names["answer"].to_pandas()
    assert list(table.index) == ["none", "static:4", "goodput"]
    assert table["speedup"].max() > 1


def test_every_page_is_in_the_index() -> None:
    index = PROJECT / "docs" / "index.md"
    linked = {
        (index.parent / target.partition("#")[0]).resolve() for target in LINK.findall(index.read_text())
    }
    pages = {page for page in PAGES if PROJECT / "evidence" not in page.parents}
    assert pages - linked - {index} == set()


@pytest.mark.parametrize(
    "line",
    [
        "tlt sim nothing",
        "tlt sim compare --polices none --out out/x",
        "tlt sim compare --config sim/presets/absent.toml --out out/x",
        "tlt sim compare --set workload.cap=3 --out out/x",
        "tlt sim compare",
        "tlt sim compare surplus --out out/x",
        "tlt sim export out/advice --format vlm --out out/x",
        "tlt sim compare --draws many --out out/x",
    ],
)
def test_a_command_line_that_does_not_exist_is_found(line: str) -> None:
    (words,) = command_lines(f"    {line}\n")
    with pytest.raises((click.UsageError, AssertionError)):
        check_command(words)


@pytest.mark.parametrize("name", ["static:four", "nobody", "none@never", "none/sometimes"])
def test_a_policy_that_does_not_exist_is_found(name: str) -> None:
    with pytest.raises(ValueError, match="got"):
        check_policies(["sim", "compare", "--policies", f"none,{name}"])
