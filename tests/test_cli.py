"""The command `tlt`: its frozen surface, what its help imports, its exit codes, and one run end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tlt.commands import main
from tlt.traces.common.manifest import seal_also
from tlt.traces.runs.runfolder import RunFolder
from tlt.version import VERSION
from tltsched.errors import InputError

# A command, its arguments in capitals, its options. Scripts depend on it: add to it, take nothing away.
GIVEN = {"--config", "--set", "--phases", "--fitted", "--out", "--force", "--json"}
SURFACE: dict[str, set[str]] = {
    "sim counterfactual": {
        "RUN", "--config", "--set", "--phases", "--observed", "--policies", "--gpus", "--tp", "--price",
        "--cap", "--tokenizer", "--draws", "--out", "--report", "--responses", "--columns",
        "--follow", "--force", "--json",
    },
    "sim fit-acceptance": {"RUN_FOLDER", "--steps", "--out"},
    "sim validate-training": {"RUN_FOLDER", "--calibration", "--out", "--save-drift"},
    "sim retrain": {"RUN_FOLDER", "--calibration", "--out", "--save-drift"},  # its name of version 1
    "real drafter export": {"WEIGHTS", "--model", "--out"},
    "real drafter measure": {"--batches", "--config", "--out", "--prompts", "--repeats", "--set"},
    "real export-policy": {"RUN_FOLDER", "--model", "--out"},
    "real drafter warm-up": {"--config", "--draft-vocab", "--out", "--responses", "--set", "--tokens"},
    "real train": {"--policies", "--calibration", "--config", "--out", "--set"},
    "real train-fields": set(),
    "real warm-up": {"ARGUMENTS"},  # says where it went
    "check": {"--json"},
    "watch": {"TARGETS", "--every", "--once", "--steps", "--until-idle", "--strict", "--calibration",
              "--break-even", "--max-drafter-age", "--page", "--json"},
    "report train": {"FOLDER"},
    "trace describe": {"NAME_OR_FILE", "--cap", "--tokens-per-s", "--json"},
    "trace sample": {
        "NAME_OR_FILE", "--out", "--n", "--steps", "--prompts", "--samples", "--group-correlation",
        "--drift", "--prompt-tokens", "--law", "--cap", "--seed", "--force",
    },
    "trace fit": {"NAME_OR_FILE", "--cap", "--seed", "--out", "--json", "--force"},
    "trace import": {
        "PATH", "--out", "--format", "--tokenizer", "--phases", "--cap", "--step", "--json", "--force",
        "--responses", "--columns",
    },
    "trace formats": {"--json"},
    "trace peek": {"FILE", "--all", "--json"},
    "trace acceptance": {"PATH", "--drafts", "--out", "--json", "--force"},
    "trace doctor": {
        "PATHS", "--calibration", "--break-even", "--max-drafter-age", "--max-staleness", "--format",
        "--tokenizer", "--cap", "--json", "--responses", "--columns", "--follow",
    },
    "trace convert": {
        "NAME_OR_FILE", "OUT", "--cap", "--kind", "--model", "--tokenizer", "--source", "--licence",
        "--law", "--seed", "--force",
    },
    "sim run": GIVEN | {"--policy", "--report"},
    "sim compare": GIVEN | {"--policies", "--report", "--draws"},
    "sim recommend": GIVEN | {
        "--config", "--set", "--policies", "--out", "--draws", "--gpus-budget", "--gpu", "--tp", "--engines",
        "--schedules", "--price", "--on-policy", "--jobs", "--executor",
    },
    "sim sweep": GIVEN | {"--grid", "--executor", "--jobs"},
    "sim kstar": GIVEN | {"--draft-configs", "--batches", "--contexts", "--acceptance"},
    "sim policies": {"--json"},
    "sim schedules": {"--json"},
    "sim export": {
        "FOLDER", "--config", "--set", "--format", "--draft-configs", "--tolerance", "--method",
        "--draft-model", "--out",
    },
    "sim drafter": {"--config", "--set", "--policy", "--run-steps", "--first-tokens", "--price", "--json"},
    "sim borrow": {
        "--config", "--set", "--python", "--model", "--system", "--engine", "--head",
        "--ks", "--own", "--out",
    },
    "sim fields": set(),
    "sim calibrations": {"NAME"},
    "sim models": {"NAME"},
    "sim gpus": {"NAME"},
    "real model": {
        "NAME", "--out", "--shape-only", "--vocab", "--draft-vocab", "--draft-model", "--seed",
    },
    "real calibrate": {"--config", "--set", "--out", "--compare", "--refit"},
    "real replay": {"--config", "--set", "--policies", "--calibration", "--executor", "--out", "--report"},
    "real check-export": {"FILE", "--max-running", "--python"},
    "real collect": {"FOLDER"},
    "real step-times": {"CALIBRATION", "--max-running", "--out", "--policy"},
    "real fields": set(),
    "report run": {"FOLDER", "--open-step"},
    "report decisions": {"FOLDER", "--against"},
    "report crosscheck": {"MEASURED", "--simulated", "--calibration", "--max-error"},
}  # fmt: skip
HEAVY = {"numpy", "pandas", "matplotlib", "scipy", "simpy", "pyarrow", "torch", "vllm"}
TINY = (
    "--set", "hardware.gpus=8", "--set", "workload.steps=1", "--set", "workload.prompts_per_step=6",
    "--set", "workload.samples_per_prompt=2", "--set", "workload.max_response_tokens=300",
)  # fmt: skip


def surface(group: click.Group, path: tuple[str, ...] = ()) -> dict[str, set[str]]:
    """Return the commands under a group with their options and arguments."""
    found: dict[str, set[str]] = {}
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found |= surface(command, (*path, name))
        else:
            found[" ".join((*path, name))] = {
                (parameter.name or "").upper() if isinstance(parameter, click.Argument) else parameter.opts[0]
                for parameter in command.params
            }
    return found


def call(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run `tlt` as a user does."""
    command = [sys.executable, "-m", "tlt", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "200"}
    )


def enter(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    """Run `tlt` in this process and return its exit code."""
    monkeypatch.setattr(sys, "argv", ["tlt", *map(str, arguments)])
    with pytest.raises(SystemExit) as caught:
        main.main()
    code = caught.value.code
    assert code is None or isinstance(code, int)
    return code or 0


def test_the_surface_holds_what_scripts_use() -> None:
    found = surface(main.cli)
    for command, parameters in SURFACE.items():
        assert command in found
        assert parameters <= found[command], command


def test_the_surface_is_written_down() -> None:
    known = {group for group, _, _ in (command.partition(" ") for command in SURFACE)}
    found = {name: parameters for name, parameters in surface(main.cli).items() if name.split()[0] in known}
    assert found == SURFACE, "a new command or option: write it into SURFACE and into the README"


@pytest.mark.parametrize(
    "arguments", [["--help"], ["sim", "--help"], ["sim", "run", "--help"], ["--version"]]
)
def test_help_imports_no_heavy_library(arguments: list[str]) -> None:
    script = (
        "import sys\nfrom tlt.commands import main\n"
        "sys.argv[0] = 'tlt'\n"
        "try:\n    main.main()\n"
        "except SystemExit as stop:\n    assert not stop.code, stop.code\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(("Usage:", "tlt"))
    assert "click" in done.stderr.split()
    assert not HEAVY & set(done.stderr.split())


def test_root_help_lists_every_group_and_loads_none() -> None:
    answer = CliRunner().invoke(main.cli, ["--help"])
    assert answer.exit_code == 0
    for name, (_, text) in main.COMMANDS.items():
        assert name in answer.output
        assert text.split(":")[0] in answer.output


@pytest.mark.parametrize("group", ["trace", "sim", "real", "report"])
def test_no_line_of_a_list_of_commands_is_cut(group: str) -> None:
    listed = CliRunner().invoke(main.cli, [group, "--help"]).output.partition("\nCommands:\n")[2]
    assert listed
    assert "..." not in listed


@pytest.mark.parametrize("path", [[], ["sim"], ["sim", "compare"], ["real", "drafter", "measure"]])
def test_help_has_a_short_name(path: list[str]) -> None:
    short, long = (CliRunner().invoke(main.cli, [*path, option]) for option in ("-h", "--help"))
    assert short.exit_code == long.exit_code == 0
    assert short.output == long.output


def test_names_of_earlier_versions_work_and_are_not_shown() -> None:
    runner = CliRunner()
    for command in (["sim", "compare"], ["sim", "kstar"], ["sim", "export"], ["real", "replay"]):
        assert "--arms" not in runner.invoke(main.cli, [*command, "--help"]).output
        refused = runner.invoke(main.cli, [*command, "--arms"])
        assert "requires an argument" in refused.output
    assert "retrain" not in runner.invoke(main.cli, ["sim", "--help"]).output
    old, new = (runner.invoke(main.cli, ["sim", name, "--help"]) for name in ("retrain", "validate-training"))
    assert old.exit_code == 0
    assert old.output.splitlines()[1:] == new.output.splitlines()[1:]


def test_the_version_is_known_without_an_installation() -> None:
    script = (
        "import importlib.metadata as metadata, sys\n"
        "def absent(name):\n    raise metadata.PackageNotFoundError(name)\n"
        "metadata.version = metadata.distribution = absent\n"
        "from tlt.commands import main\nsys.argv = ['tlt', '--version']\nmain.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"tlt, version {VERSION}"
    settings = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    assert settings["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "tlt.version.VERSION"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["sim", "run", "--set", "hardware.gpuz=4"], "got 4 for hardware.gpuz; allowed:"),
        (["sim", "run", "--policy", "tl"], "got 'tl' for policy; allowed:"),
        (["sim", "compare", "--policies", "none,none"], "got 'none,none' for --policies; allowed:"),
        (["sim", "recommend", "--set", "cost.source=x"], "got 'x' for calibration; allowed:"),
        (["real", "warm-up", "m"], "got 'warm-up' for tlt real; allowed: python -m examples.rl"),
    ],
)
def test_bad_input_ends_with_2_and_one_line(
    arguments: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    assert enter(monkeypatch, *arguments, "--out", tmp_path / "out") == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"error: {told}")
    assert printed.err.count("\n") == 1


@pytest.mark.slow
def test_bad_input_shows_no_traceback_to_a_user(tmp_path: Path) -> None:
    done = call("sim", "run", "--set", "workload.steps=none", "--out", tmp_path / "out")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: got 'none' for workload.steps; allowed: ")
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["sim", "run"], ["sim", "run", "--config", "missing.toml", "--out", "x"],
                  ["report", "missing"]],
)  # fmt: skip
def test_wrong_usage_ends_with_2(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert enter(monkeypatch, *arguments) == 2
    printed = capsys.readouterr().err
    assert "Traceback" not in printed
    assert "Error: " in printed


def test_a_folder_without_a_run_ends_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert enter(monkeypatch, "report", tmp_path) == 2
    assert capsys.readouterr().err.startswith("error: got ")


def test_an_interrupt_ends_with_130(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tlt.sim.comparison.run_policy", interrupt)
    assert enter(monkeypatch, "sim", "run", *TINY, "--out", tmp_path / "out") == 130
    printed = capsys.readouterr().err
    assert printed.strip().startswith("stopped")
    assert "Traceback" not in printed


def test_fields_and_calibrations_are_listed() -> None:
    runner = CliRunner()
    listed = runner.invoke(main.cli, ["sim", "fields"]).output
    assert "hardware.gpus = 64\n    GPUs of the cluster" in listed
    assert "cluster.spot.enabled" in listed
    everything = runner.invoke(main.cli, ["sim", "calibrations"]).output
    one = runner.invoke(main.cli, ["sim", "calibrations", "paper-qwen32b-tp4"]).output
    assert one in everything
    assert "published: TLT on SGLang" in one


@pytest.mark.slow
def test_a_run_and_its_report_end_to_end(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = call("sim", "run", *TINY, "--policy", "static:8_8_32", "--out", out, "--no-report")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(out)
    assert not (out / "report.html").exists()
    config = json.loads((out / "resolved_config.json").read_bytes())
    assert config["policy"] == {"kind": "static", "draft_config": "8_8_32", **config["policy"]}
    assert RunFolder(out).summary().policy == "static:8_8_32"
    reported = call("report", out)
    assert reported.returncode == 0, reported.stderr
    assert "report.html" in reported.stdout
    assert (out / "report.html").read_text(encoding="utf-8").startswith("<!")
    json.loads((out / "trace.json").read_bytes())
    summary = out / "summary.json"
    wall_s = RunFolder(out).summary().wall_s
    summary.write_bytes(summary.read_bytes().replace(str(wall_s).encode(), str(2 * wall_s).encode()))
    seal_also(out, "summary.json")
    broken = call("report", out)
    assert broken.returncode == 3, "the GPU time does not add up"
    assert broken.stderr.startswith("error: the GPU time does not add up: ")


@pytest.mark.slow
def test_a_recommendation_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    arguments = ("sim", "recommend", *TINY, "--policies", "none,tlt", "--draws", "1", "--out", out)
    assert enter(monkeypatch, *arguments) == 0
    for name in ("comparison.json", "lengths.parquet", "advice.json", "cost_draws.parquet", "report.html"):
        assert (out / name).is_file(), name


@pytest.mark.slow
def test_a_plan_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    arguments = (
        "sim", "recommend", *TINY, "--policies", "none,tlt", "--gpus-budget", "8", "--gpu", "H100,L40",
        "--schedules", "synchronous", "--jobs", "1", "--out", out,
    )  # fmt: skip
    assert enter(monkeypatch, *arguments) == 0
    for name in ("plan.json", "plan.parquet", "comparison.json", "bounds.json", "pictures/plan.png"):
        assert (out / name).is_file(), name
    assert "The designs" in (out / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_comparison_says_how_sure_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    assert enter(monkeypatch, "sim", "compare", *TINY, "--policies", "none,tlt", "--out", out) == 0
    for name in ("cost_error.json", "cost_draws.parquet", "bounds.json"):
        assert (out / name).is_file(), name
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Schedules that train each step on its own responses, in turn: at most" in page


@pytest.mark.parametrize(
    ("command", "assignment"),
    [
        (["sim", "kstar", "--out", "x"], "workload.steps=9"),
        (["sim", "kstar", "--out", "x"], "cluster.schedule=tail_batching"),
        (["sim", "kstar", "--out", "x"], "phases.reward_s=3"),
        (["sim", "drafter"], "workload.steps=9"),
    ],
)
def test_a_setting_that_a_command_does_not_use_is_refused(command: list[str], assignment: str) -> None:
    answer = CliRunner().invoke(main.cli, [*command, "--set", assignment])
    path, _, value = assignment.partition("=")
    assert isinstance(answer.exception, InputError)
    assert str(answer.exception).startswith(f"got '{value}' for {path}; allowed: nothing here: ")
