import io
import json
import shutil
import struct
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from tests.sim.observed_world import GIVEN, lengths, write_observed
from tlt.analysis.comparison.compare import compare as compare_runs
from tlt.analysis.comparison.ranking import judge
from tlt.analysis.counterfactual.picture import draw_counterfactual, title_of
from tlt.analysis.counterfactual.report import flags_of
from tlt.analysis.counterfactual.words import (
    answer_sentences,
    limit_sentence,
    observed_sentence,
    reproduction_sentence,
)
from tlt.analysis.load import RunSet, load_runs
from tlt.analysis.report import present
from tlt.sim.counterfactual.answer import counterfactual
from tlt.sim.counterfactual.observed_run import observe
from tlt.sim.counterfactual.settings import replay_of
from tlt.traces.common.manifest import sealed
from tlt.traces.importers.reading.items import Options
from tlt.traces.results.counterfactual import OBSERVED_TRACE, Counterfactual, read_counterfactual
from tlt.traces.runs.runfolder import write_json
from tltsched.errors import InputError

POLICIES = ["static:2", "none@oversample_partial", "none@longest_first"]


def silent(policy: str, step: int) -> None:
    del policy, step


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a counterfactual of a run with times and a price."""
    path = tmp_path_factory.mktemp("observed")
    trace, phases = write_observed(path, lengths())
    observed = observe(trace, phases, Options())
    out = path / "out"
    counterfactual(replay_of(observed, GIVEN, out / OBSERVED_TRACE, POLICIES), out, 9, 3.0, silent)
    return out


@pytest.fixture(scope="module")
def told(folder: Path) -> Counterfactual:
    return read_counterfactual(folder)


@pytest.fixture(scope="module")
def runs(folder: Path) -> RunSet:
    return load_runs(folder)


def test_savings_are_seconds_times_gpus_times_price(told: Counterfactual, runs: RunSet) -> None:
    answer = judge(compare_runs(runs), runs, 3.0)
    base, static = answer.policies[:2]
    assert base.speedup.value == 1
    assert base.saved_gpu_hours.value == 0
    assert static.speedup.value == pytest.approx(base.step_s / static.step_s)
    assert static.saved_gpu_hours.value == pytest.approx((base.step_s - static.step_s) * 6 * 2 / 3600)
    assert static.gpu_hours == pytest.approx(static.step_s * 6 * 2 / 3600)
    assert static.saved_usd is not None
    assert static.saved_usd.value == pytest.approx(3 * static.saved_gpu_hours.value)
    assert static.speedup.interval is not None


def test_what_changes_the_order_is_counted_by_token_and_ranked_only_when_settled(
    told: Counterfactual, runs: RunSet
) -> None:
    base, run = runs.runs[0], runs.runs[2]
    policy = judge(compare_runs(runs), runs, 3.0).policies[2]
    tokens = [int(each.responses["response_tokens"].sum()) for each in (base, run)]
    assert runs.token_factor(run) == policy.token_factor == pytest.approx(tokens[0] / tokens[1])
    assert runs.token_factor(base) == 1
    step_s = float((run.steps["end_s"] - run.steps["start_s"]).mean())
    assert policy.step_s == pytest.approx(step_s * tokens[0] / tokens[1])
    assert policy.figure == pytest.approx(step_s * len(run.steps) / tokens[1] * 1e6)
    assert policy.left_behind == run.left_behind() > 0
    assert policy.unsettled == (policy.left_behind > 0.1 * len(run.responses))
    assert (policy.rank == 0) == policy.unsettled


def test_a_schedule_that_knows_lengths_is_never_the_answer(told: Counterfactual, runs: RunSet) -> None:
    answer = judge(compare_runs(runs), runs, 3.0)
    knowing = answer.policies[3]
    assert knowing.clairvoyant
    assert knowing.rank == 0
    assert answer.best != knowing.policy
    assert answer.regrets is not None
    assert answer.regrets.chosen == answer.recommended
    assert set(answer.regrets.instead) == {each.policy for each in answer.policies if each.rank > 1}


def test_sentences_say_the_error_first_and_every_limit(told: Counterfactual, runs: RunSet) -> None:
    answer = judge(compare_runs(runs), runs, 3.0)
    assert "6 steps, 192 responses to 48 prompts" in observed_sentence(told)
    said = reproduction_sentence(told)
    assert "in rollout seconds" in said
    assert "3 further steps" in said
    assert "GPU-hours" in answer_sentences(answer)[1]
    assert "nobody can know lengths in advance: none@longest_first" in answer.sentence
    assert "(Amdahl)" in limit_sentence(told, answer)
    flags = flags_of(told, compare_runs(runs))
    assert sum("trains on other responses" in flag for flag in flags) == 1


def test_the_picture_is_one(told: Counterfactual, runs: RunSet) -> None:
    answer = judge(compare_runs(runs), runs, 3.0)
    picture = draw_counterfactual(told, answer, runs)
    assert picture.title == title_of(answer)
    width, height = struct.unpack(">II", picture.png[16:24])
    assert width > 800
    assert height > 300


@pytest.mark.slow
def test_the_report_comes_in_order(folder: Path) -> None:
    text = io.StringIO()
    present(folder, Console(file=text, width=120))
    printed = text.getvalue()
    places = [printed.index(word) for word in ("Observed under", "Reproduction of", "Saved", "Bounds")]
    assert places == sorted(places)
    page = (folder / "counterfactual.html").read_text(encoding="utf-8")
    headings = [page.index(f"<h2>{number}. ") for number in (1, 2, 3, 4)]
    assert headings == sorted(headings)
    assert json.loads((folder / "answer.json").read_bytes())["policies"][0]["policy"] == "none"
    assert (folder / "pictures" / "counterfactual.png").is_file()
    assert (folder / "report.html").is_file()


@pytest.mark.slow
def test_names_are_escaped(folder: Path, told: Counterfactual, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "out")
    odd = msgspec.structs.replace(told, source="<script>alert(1)</script> [red]x[/red]")
    with sealed(tmp_path / "out"):
        write_json(tmp_path / "out" / "counterfactual.json", odd)
    text = io.StringIO()
    present(tmp_path / "out", Console(file=text, width=200))
    assert "[red]x[/red]" in text.getvalue()
    page = (tmp_path / "out" / "counterfactual.html").read_text(encoding="utf-8")
    assert "<script>" not in page
    assert "<h1>Counterfactual of &lt;script&gt;alert(1)&lt;/script&gt;" in page


@pytest.mark.slow
def test_without_a_price_and_times_no_money_is_told(tmp_path: Path) -> None:
    trace, _ = write_observed(tmp_path, lengths(steps=2))
    observed = observe(trace, None, Options())
    replay = replay_of(observed, GIVEN, tmp_path / "out" / OBSERVED_TRACE, ["static:2"])
    counterfactual(replay, tmp_path / "out", 0, None, silent)
    text = io.StringIO()
    present(tmp_path / "out", Console(file=text, width=120))
    assert "USD" not in text.getvalue()
    assert "not checked" in text.getvalue()


def test_a_broken_file_is_named(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "counterfactual.json"
    broken.write_bytes((folder / "counterfactual.json").read_bytes()[:200])
    with pytest.raises(InputError, match=r"counterfactual\.json"):
        read_counterfactual(tmp_path)
