"""A result folder belongs to one command and one question; what a log hands on; answers as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.sim.observed_world import lengths, write_observed
from tlt.commands import main
from tlt.traces.common.manifest import sealed
from tlt.traces.results.study import MARKS, STUDY, claim
from tltsched.errors import InputError

TINY = (
    "--set", "hardware.gpus=4", "--set", "hardware.tp=1", "--set", "hardware.model=Qwen2.5-7B",
    "--set", "workload.steps=2", "--set", "workload.prompts_per_step=4", "--set",
    "workload.samples_per_prompt=2", "--set", "workload.max_response_tokens=400",
)  # fmt: skip


def tlt(*arguments: object) -> str:
    """Run a command in this process and return what it prints; raises what it raises."""
    done = CliRunner().invoke(main.cli, [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_same_question_goes_on_and_another_is_refused(tmp_path: Path) -> None:
    question = {"workload": {"steps": 8}, "hardware": {"gpus": 4}}
    claim(tmp_path / "new" / "deep", "compare", question)
    claim(tmp_path, "compare", question)
    claim(tmp_path, "compare", question)
    with pytest.raises(InputError, match=r"workload.steps = 8 \(now 9\): choose another folder"):
        claim(tmp_path, "compare", {"workload": {"steps": 9}, "hardware": {"gpus": 4}})
    with pytest.raises(InputError, match="it holds what `tlt sim compare` wrote"):
        claim(tmp_path, "run", question)
    claim(tmp_path, "run", question, force=True)
    assert json.loads((tmp_path / STUDY).read_bytes())["command"] == "run"


@pytest.mark.parametrize("damage", [b"", b"{\xff}", b'{"command": '])
def test_a_damaged_study_gives_way_to_the_same_command(tmp_path: Path, damage: bytes) -> None:
    """It was refused with the advice to give the same command again, each time, --force or not."""
    with sealed(tmp_path):
        claim(tmp_path, "compare", {"a": 1})
        (tmp_path / "comparison.json").write_text("{}")
    whole = (tmp_path / STUDY).read_bytes()
    (tmp_path / STUDY).write_bytes(damage)
    with pytest.raises(InputError, match="it holds what `tlt sim compare` wrote"):
        claim(tmp_path, "run", {"a": 1})
    claim(tmp_path, "compare", {"a": 1})
    assert (tmp_path / STUDY).read_bytes() == whole


@pytest.mark.parametrize(("mark", "command"), MARKS)
def test_a_folder_of_an_earlier_version_is_known_by_its_files(
    tmp_path: Path, mark: str, command: str
) -> None:
    (tmp_path / mark).write_text("{}")
    (tmp_path / "lengths.csv").write_text("mine")
    claim(tmp_path, command, {"a": 1})
    (tmp_path / STUDY).unlink()
    with pytest.raises(InputError, match="it holds what"):
        claim(tmp_path, "other", {"a": 1})
    claim(tmp_path, "other", {"a": 1}, force=True)
    assert not (tmp_path / mark).exists()
    assert (tmp_path / "lengths.csv").read_text() == "mine"


@pytest.mark.slow
def test_no_command_prints_the_table_of_another(tmp_path: Path) -> None:
    out = tmp_path / "out"
    tlt("sim", "compare", *TINY, "--policies", "none,goodput", "--out", out, "--no-report", "--draws", 0)
    before = {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
    with pytest.raises(InputError, match="it holds what `tlt sim compare` wrote"):
        tlt("sim", "run", *TINY, "--policy", "static:1", "--out", out)
    assert {path: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()} == before
    told = tlt("sim", "run", *TINY, "--policy", "static:1", "--out", out, "--force", "--json")
    assert json.loads(told)["recommended"] == "static:1"
    assert not (out / "comparison.json").exists()
    assert not (out / "goodput").exists()


@pytest.mark.slow
def test_a_log_hands_its_phases_and_the_fitted_factor_on(tmp_path: Path) -> None:
    trace, phases = write_observed(tmp_path, lengths())
    fitted = tmp_path / "fitted"
    hardware = TINY[:6]
    tlt("sim", "counterfactual", trace, "--phases", phases, *hardware, "--set", "hardware.gpu=H100",
        "--policies", "static:2", "--draws", 0, "--out", fitted, "--no-report")  # fmt: skip
    scale = json.loads((fitted / "counterfactual.json").read_bytes())["fit"]["scale"]["value"]
    handed = ("--phases", phases, "--fitted", fitted)
    tlt("sim", "run", *TINY, "--policy", "none", *handed, "--out", tmp_path / "run", "--no-report")
    told = json.loads((tmp_path / "run" / "resolved_config.json").read_bytes())
    assert told["cost"]["scale"] == scale
    mean = json.loads(phases.read_bytes())["phases"]["policy_update"]["mean_s"]
    assert told["phases"]["policy_update_s"] == pytest.approx(mean)
    own = ("--set", "phases.policy_update_s=1", "--set", "cost.scale=2", "--out", tmp_path / "own")
    tlt("sim", "run", *TINY, "--policy", "none", *handed, *own, "--no-report")
    told = json.loads((tmp_path / "own" / "resolved_config.json").read_bytes())
    assert (told["phases"]["policy_update_s"], told["cost"]["scale"]) == (1, 2)
    with pytest.raises(InputError, match="prompts_per_step"):
        tlt(
            "sim", "counterfactual", trace, *hardware, "--set", "workload.prompts_per_step=4", "--out", fitted
        )
