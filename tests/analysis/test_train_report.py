import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.analysis.training_runs import FOLDERS, PLANS, PolicyPlan, write_policy, write_training
from tlt.analysis.drawing.estimates import change, estimate_text, more_tokens, outside, percent, times
from tlt.analysis.training.figures import examine
from tlt.analysis.training.pictures import draw_training
from tlt.analysis.training.report import render
from tlt.analysis.training.run import load_training
from tlt.analysis.training.verdict import judge_training
from tlt.commands.report import report
from tlt.traces.common.intervals import Estimate
from tlt.traces.runs.runfolder import RunFolder
from tltsched.errors import InputError

pytestmark = pytest.mark.slow

PICTURES = (
    "train_step_time", "train_amdahl", "train_acceptance", "train_rewards", "train_lengths",
    "ledger", "gantt",
)  # fmt: skip


def run_train(folder: Path) -> Result:
    return CliRunner().invoke(report, ["train", str(folder)], catch_exceptions=False)


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = write_training(tmp_path_factory.mktemp("training"))
    return folder, run_train(folder)


def test_the_command_writes_page_figures_and_pictures(shown: tuple[Path, Result]) -> None:
    folder, result = shown
    assert result.exit_code == 0
    assert (folder / "train.html").is_file()
    assert {path.stem for path in (folder / "pictures").glob("*.png")} == set(PICTURES)
    facts = json.loads((folder / "train.json").read_bytes())
    assert [policy["policy"] for policy in facts["policies"]] == [plan.policy for plan in PLANS]
    assert facts["policies"][2]["time"]["step_speedup"]["value"] > 1
    assert facts["policies"][0]["amdahl"] is None


def test_the_terminal_fits_80_columns_and_says_the_answer(shown: tuple[Path, Result]) -> None:
    _, result = shown
    lines = result.output.splitlines()
    assert all(len(line) <= 80 for line in lines if not line.startswith("page: "))
    answer = " ".join(result.output.split())
    assert "static:4/online trains faster than none" in answer
    assert "Amdahl's law gives" in answer
    assert "accepted than with a frozen one (static:4/online over static:4/frozen)" in answer
    assert "no difference is seen" in answer


def test_the_page_stands_alone(shown: tuple[Path, Result]) -> None:
    page = (shown[0] / "train.html").read_text(encoding="utf-8")
    assert "<script>" not in page  # its own have names
    assert page.count("<svg ") == len(PICTURES)
    assert "src=" not in page
    for title in ("Amdahl's law", "Acceptance by age of the drafter", "Rewards", "Idle GPU time and waiting"):
        assert title in page


def test_the_same_folder_gives_the_same_bytes(shown: tuple[Path, Result]) -> None:
    folder, _ = shown
    paths = [folder / "train.json", folder / "train.html", *(folder / "pictures").glob("*.png")]
    before = [path.read_bytes() for path in paths]
    run_train(folder)
    assert [path.read_bytes() for path in paths] == before


def test_the_plain_report_reads_training_folders(tmp_path: Path) -> None:
    plans = (PLANS[0], PolicyPlan("static:4/online", speed=1.8, drafts=True, trains=True, length_seed=2))
    folder = write_training(tmp_path, plans, steps=3)
    result = CliRunner().invoke(report, [str(folder)], catch_exceptions=False)
    assert result.exit_code == 0
    assert "generated other lengths than none" in " ".join(result.output.split())


def test_one_step_of_one_policy_without_drafting(tmp_path: Path) -> None:
    write_policy(tmp_path, PLANS[0], steps=1)
    result = run_train(tmp_path)
    assert result.exit_code == 0
    assert "A speedup needs a second policy" in " ".join(result.output.split())
    names = {path.stem for path in (tmp_path / "pictures").glob("*.png")}
    assert names == set(PICTURES) - {"train_amdahl", "train_acceptance"}


def test_names_are_escaped(tmp_path: Path) -> None:
    write_policy(tmp_path, PolicyPlan("<b>&none"), steps=2)
    runs = load_training(tmp_path)
    facts = examine(runs)
    page = render(runs, facts, draw_training(runs, facts))
    assert "<b>&none" not in page
    assert "&lt;b&gt;&amp;none" in page


def test_a_slower_policy_is_no_gain(tmp_path: Path) -> None:
    plans = (PLANS[0], PolicyPlan("static:4/frozen", speed=0.8, drafts=True))
    facts = examine(load_training(write_training(tmp_path, plans, steps=4)))
    assert judge_training(facts).startswith("No policy was faster than none over 4 RL steps.")
    assert judge_training(facts).endswith("of what comes less often than in one of 4.")


def test_a_flag_that_stops_leaves_no_conclusion(tmp_path: Path) -> None:
    plans = (PLANS[0], PolicyPlan("static:4", speed=2.0, drafts=True, prompt_tokens=60))
    folder = write_training(tmp_path, plans, steps=2)
    assert judge_training(examine(load_training(folder))).startswith(
        "No conclusion: static:4 was asked other"
    )
    assert "!! static:4 was asked other prompts than none" in run_train(folder).output


def test_rewards_that_differ_are_said_to(tmp_path: Path) -> None:
    plans = (PLANS[0], PolicyPlan("static:4", speed=2.0, drafts=True, reward=-0.3))
    facts = examine(load_training(write_training(tmp_path, plans)))
    assert "the policies differ (difference -0." in judge_training(facts)


def test_gpu_time_that_does_not_add_up_exits_with_3(tmp_path: Path) -> None:
    path = write_training(tmp_path, PLANS[:2], steps=2)
    folder = RunFolder(path / FOLDERS[1])
    folder.write(folder.summary(), folder.responses(), folder.intervals().iloc[:-1], folder.steps())
    result = run_train(path)
    assert result.exit_code == 3
    assert "the GPU time does not add up" in result.output
    assert not (path / "train.json").exists()


def test_a_run_that_trained_nothing_is_refused(tmp_path: Path) -> None:
    write_policy(tmp_path, PLANS[0], steps=2)
    (tmp_path / "updates.parquet").unlink()
    with pytest.raises(InputError, match=r"updates\.parquet"):
        run_train(tmp_path)


def test_words_of_estimates() -> None:
    ratio = Estimate(0.98, (0.95, 1.01))
    assert change(ratio, "shorter", "longer") == "2.0% shorter (95 % interval 5.0% shorter to 1.0% longer)"
    assert "no interval: why" in change(Estimate(1.02, None, "why"), "shorter", "longer")
    fewer = Estimate(-0.3, (-0.5, 0.1))
    assert more_tokens(fewer) == "0.30 tokens an engine step fewer (95 % interval -0.10 to 0.50)"
    assert not outside(ratio, 1.0)
    assert outside(ratio, 1.02)
    assert not outside(None, 1.0)
    assert not outside(Estimate(5.0, None, "why"), 1.0)


def test_cells_of_estimates() -> None:
    assert estimate_text(Estimate(2.0, (1.5, 2.5)), times) == "2.00x [1.50x, 2.50x]"
    assert estimate_text(Estimate(0.2, None, "why"), percent) == "20.0%"
    assert estimate_text(Estimate(float("nan"), None, "why")) == "-"
    assert estimate_text(None) == "-"
