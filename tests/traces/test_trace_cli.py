import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.traces.trace_command import answer, refusal
from tlt.traces.lengths.files import read_trace
from tlt.traces.lengths.shipped import SHIPPED


def test_describe_shows_figures_and_kind() -> None:
    text = answer("describe", "r1-client66")
    for part in (
        "7,099",
        "22,951",
        "serving lengths, not RL rollouts",
        "Modelled",
        "mean longest",
        "alibaba",
    ):
        assert part in text


def test_describe_as_json_with_a_cap() -> None:
    told = json.loads(answer("describe", "r1-client66", "--cap", "20480", "--json"))
    assert told["max"] == told["max_response_tokens"] == 20_480
    assert told["share_at_cap"] == pytest.approx(0.029, abs=0.0005)
    assert told["kind"] == "serving"
    assert "Cut at 20,480 tokens after the recording" in told["origin"]
    assert [batch["batch"] for batch in told["batches"]] == [8, 64, 256, 1024]


@pytest.mark.slow
def test_fit_shows_distance_advice_and_kind() -> None:
    text = answer("fit", "azure-conversation")
    for part in ("KS", "do not use for prediction; sample the histogram", "not RL rollouts", "weibull"):
        assert part in text
    fits = json.loads(answer("fit", "azure-conversation", "--json"))
    assert {fit["law"] for fit in fits} == {"lognormal", "gamma", "weibull"}
    assert all("do not use" in fit["advice"] for fit in fits)


def test_sample_writes_what_was_asked_for(tmp_path: Path) -> None:
    out = tmp_path / "made.parquet"
    options = (
        "--steps",
        "3",
        "--prompts",
        "4",
        "--samples",
        "5",
        "--group-correlation",
        "0.5",
        "--cap",
        "9000",
    )
    text = answer("sample", "r1-all", "--out", out, *options, "--drift", "0.01", "--prompt-tokens", "80")
    assert "60 responses, generated lengths" in text
    assert "rho = 0.5" in text
    made = read_trace(out)
    assert (len(made.rows), made.origin.kind, made.origin.max_response_tokens) == (60, "generated", 9_000)


def test_sample_of_n_is_one_step_and_the_seed_decides(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        answer("sample", "r1-all", "--n", "100", "--out", tmp_path / f"{name}.csv", "--seed", str(seed))
    a, b, c = ((tmp_path / f"{name}.csv").read_bytes() for name in "abc")
    assert a == b
    assert a != c
    assert read_trace(tmp_path / "a.csv").rows["step"].unique().tolist() == [0]


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (("--n", "5", "--steps", "2"), "without --steps"),
        (("--steps", "2"), "--n or --prompts"),
        (("--n", "5", "--group-correlation", "2"), "got 2.0 for group_correlation"),
    ],
)
def test_sample_refuses_sizes_that_do_not_agree(tmp_path: Path, options: tuple[str, ...], part: str) -> None:
    out = tmp_path / "x.csv"
    assert part in refusal("sample", "r1-all", "--out", out, *options)
    assert not out.exists()


def test_convert_states_an_origin_and_keeps_it(tmp_path: Path) -> None:
    source, middle, last = (tmp_path / name for name in ("a.csv", "b.jsonl.gz", "c.parquet"))
    source.write_text("response_tokens\n5\n10\n")
    assert "unstated kind" in answer("describe", source)
    answer(
        "convert", source, middle, "--kind", "rollout", "--model", "m", "--cap", "10", "--source", "my run"
    )
    answer("convert", middle, last)
    made = read_trace(last)
    assert (made.origin.kind, made.origin.model, made.origin.max_response_tokens) == ("rollout", "m", 10)
    assert made.rows["truncated"].tolist() == [False, True]
    assert "RL rollout lengths" in answer("describe", last)


def test_convert_takes_shipped_rows_as_they_are(tmp_path: Path) -> None:
    assert "12,031" in answer("convert", "mooncake-conversation", tmp_path / "m.parquet")
    assert "origin" in refusal("convert", "mooncake-conversation", tmp_path / "n.csv", "--kind", "rollout")
    assert "histogram without rows" in refusal("convert", "r1-all", tmp_path / "n.csv")


def test_outputs_are_not_replaced_by_accident(tmp_path: Path) -> None:
    source, out = tmp_path / "a.csv", tmp_path / "b.csv"
    source.write_text("response_tokens\n5\n")
    out.write_text("mine")
    assert "--force" in refusal("convert", source, out)
    assert "--force" in refusal("sample", source, "--n", "2", "--out", out)
    assert out.read_text() == "mine"
    assert "another file than the input" in refusal("convert", source, source, "--force")
    assert "another file than the input" in refusal("sample", source, "--n", "2", "--out", source, "--force")
    answer("convert", source, out, "--force")
    assert read_trace(out).rows["response_tokens"].tolist() == [5]


def test_user_errors_reach_the_caller_as_they_are(tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("response_tokens\n5\n-3\n")
    assert "got '-3' for response_tokens in line 3 of bad.csv" in refusal("describe", bad)
    assert "did you mean 'r1-all'?" in refusal("describe", "r1-al")


def test_the_help_names_all_shipped_data() -> None:
    text = answer("--help")
    assert [name for name in SHIPPED if name not in text] == []


def test_the_command_loads_no_heavy_library() -> None:
    code = (
        "import sys, tlt.commands.trace.group; "
        "print([m for m in ('numpy', 'pandas', 'scipy', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
