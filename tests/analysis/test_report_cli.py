import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.analysis.fake_run import write_comparison, write_run
from tlt.commands.report import report
from tlt.traces.runs.runfolder import RunFolder
from tltsched.errors import InputError


@pytest.mark.slow
@pytest.mark.parametrize("words", [[], ["run"]])
def test_report_with_and_without_the_command(tmp_path: Path, words: list[str]) -> None:
    folder = write_comparison(tmp_path)
    result = CliRunner().invoke(report, [*words, str(folder)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "Speedup" in result.output
    assert "report.html" in result.output
    assert (folder / "report.html").is_file()


@pytest.mark.slow
def test_options_may_come_first(tmp_path: Path) -> None:
    folder = write_run(tmp_path)
    result = CliRunner().invoke(report, ["--open-step", "2", str(folder.path)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "RL step 2" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_gpu_time_that_does_not_add_up_exits_with_3(tmp_path: Path) -> None:
    folder: RunFolder = write_run(tmp_path)
    folder.write(folder.summary(), folder.responses(), folder.intervals().iloc[:-1], folder.steps())
    result = CliRunner().invoke(report, [str(tmp_path)])
    assert result.exit_code == 3
    assert "the GPU time does not add up" in result.output
    assert "worker 3" in result.output


def test_an_input_error_is_left_to_the_root_command(tmp_path: Path) -> None:
    result = CliRunner().invoke(report, [str(tmp_path)])
    assert isinstance(result.exception, InputError)


def test_help_and_a_missing_folder() -> None:
    assert "tlt report FOLDER" in CliRunner().invoke(report, ["--help"]).output
    missing = CliRunner().invoke(report, ["no-such-folder"])
    assert missing.exit_code == 2
    assert "does not exist" in missing.output


def test_the_command_line_loads_no_heavy_library() -> None:
    heavy = ("numpy", "pandas", "matplotlib", "scipy", "pyarrow", "rich")
    program = f"import sys, tlt.commands.report; sys.exit(any(name in sys.modules for name in {heavy}))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
