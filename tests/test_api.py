"""The Python API: the same figures as the commands, typed, and usable in a notebook."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from click.testing import CliRunner

import tlt
from tlt.commands.main import cli
from tltsched.errors import InputError

PROJECT = Path(__file__).resolve().parents[1]
SMALL = {
    "hardware": {"gpus": 2, "tp": 1, "model": "Qwen2.5-7B"},
    "workload.steps": 2,
    "workload.prompts_per_step": 4,
    "workload.samples_per_prompt": 2,
    "cost.source": "vllm-0.32-h100-qwen2.5-7b",
    "acceptance.kind": "geometric",
}
POLICIES = ["none", "static:2"]


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> tlt.Comparison:
    return tlt.compare(
        "r1-client35", POLICIES, settings=SMALL, out=tmp_path_factory.mktemp("api") / "compared"
    )


def test_lengths_come_from_names_files_logs_and_memory(tmp_path: Path) -> None:
    shipped = tlt.load("r1-client35")
    assert len(shipped) > 1000
    assert shipped.describe().max <= 32_768
    given = tlt.load([3, 5, 8], name="three")
    assert given.to_pandas()["response_tokens"].tolist() == [3, 5, 8]
    assert "<td>8</td>" in given._repr_html_()
    hostile = tlt.load([1], name="<script>")._repr_html_()
    assert "<script>" not in hostile
    assert tlt.load(pd.DataFrame({"response_tokens": [3, 5, 8]})).describe().p50 == 5
    file = tmp_path / "lengths.csv"
    file.write_text("response_tokens\n3\n5\n8\n", encoding="utf-8")
    assert len(tlt.load(file)) == 3
    log = tlt.load(PROJECT / "traces/importers/samples/verl_console.log")
    assert len(log) > 0
    with pytest.raises(InputError, match="r1-client35"):
        tlt.load("r1-client3")
    with pytest.raises(InputError, match="response_tokens"):
        tlt.load([0])


def test_files_of_others_may_end_as_traces_do(tmp_path: Path) -> None:
    samples = PROJECT / "traces" / "importers" / "samples"
    assert len(tlt.load(samples / "metrics" / "wandb_history.csv")) == 2 * 64
    assert len(tlt.load(samples / "requests" / "splitwise.csv")) == 3
    assert len(tlt.load(samples / "metrics" / "skyrl.jsonl", responses=16)) == 2 * 16
    own = tmp_path / "own.jsonl"
    own.write_text('{"out_len": 5}\n{"out_len": 7}\n')
    assert tlt.load(own, columns={"response_tokens": "out_len"}).to_pandas()["response_tokens"].tolist() == [
        5,
        7,
    ]
    (tmp_path / "typo.csv").write_text("respone_tokens\n5\n")
    with pytest.raises(InputError, match="did you mean 'response_tokens'"):
        tlt.load(tmp_path / "typo.csv")


def test_a_comparison_has_the_figures_of_the_command(comparison: tlt.Comparison, tmp_path: Path) -> None:
    assignments = [
        f"--set={name}={value}"
        for name, value in (
            ("hardware.gpus", 2), ("hardware.tp", 1), ("hardware.model", "Qwen2.5-7B"), ("workload.steps", 2),
            ("workload.prompts_per_step", 4), ("workload.samples_per_prompt", 2),
            ("cost.source", "vllm-0.32-h100-qwen2.5-7b"), ("acceptance.kind", "geometric"),
            ("workload.lengths", "r1-client35"),
        )
    ]  # fmt: skip
    out = tmp_path / "command"
    arguments = ["sim", "compare", "--policies", ",".join(POLICIES), "--out", str(out), "--no-report"]
    done = CliRunner().invoke(cli, [*arguments, *assignments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    pd.testing.assert_frame_equal(tlt.Comparison(out).to_pandas(), comparison.to_pandas())


@pytest.mark.slow
def test_a_comparison_is_a_table_an_answer_and_a_page(comparison: tlt.Comparison) -> None:
    table = comparison.to_pandas()
    assert table.index.tolist() == POLICIES
    assert table.loc["none", "speedup"] == 1
    assert "static:2" in comparison._repr_html_()
    page = comparison.report()
    assert comparison.answer[:40] in page.read_text(encoding="utf-8")
    run = comparison.run("static:2")
    assert len(run.to_pandas()) == 2
    assert run.to_pandas()["step_s"].sum() == pytest.approx(table.loc["static:2", "total_s"])
    assert len(run.responses()) == 16
    with pytest.raises(InputError, match="static:2"):
        comparison.run("static:3")


def test_a_simulation_keeps_its_files_while_it_is_held() -> None:
    run = tlt.simulate([40, 60, 900, 30] * 4, "static:2", settings=SMALL)
    folder = run.folder
    assert run.summary.policy == "static:2"
    assert "static:2" in run._repr_html_()
    assert folder.is_dir()
    del run
    assert not folder.exists()


def test_settings_are_checked_as_those_of_the_commands() -> None:
    with pytest.raises(InputError, match=r"hardware\.gpu"):
        tlt.simulate("r1-client35", "none", settings={"hardware.gpuss": 2})
    run = tlt.simulate(
        [40, 60, 900, 30] * 4, "none", settings=SMALL | {"workload.cap_tokens": 50}
    )  # its old name
    assert run.responses()["response_tokens"].max() == 50


@pytest.mark.slow
def test_the_quickstart_runs_and_prints_a_decision(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(PROJECT / "examples" / "quickstart.py"), str(tmp_path / "out")],
        capture_output=True, text=True, check=False, cwd=PROJECT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "goodput" in done.stdout
    assert (tmp_path / "out" / "report.html").is_file()
