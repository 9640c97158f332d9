"""Sessions on the command line: described, fitted, drawn, converted, with what is not known said."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.traces.trace_command import answer, refusal
from tlt.traces.sessions.files import read_sessions


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """Twelve sessions of two or three turns; one wait in three is not known."""
    lines = ["prompt_id,sample,turn,input_tokens,response_tokens,wait_s,end"]
    for index in range(12):
        for turn in range(2 + index % 2):
            wait = "" if index % 3 == 0 else 1.5
            lines.append(
                f"{index // 2},{index % 2},{turn},{100 + index // 2},{20 + index + turn},{wait},tool"
            )
    path = tmp_path / "recorded.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_describe_says_what_is_known(recorded: Path) -> None:
    text = answer("describe", recorded)
    for part in ("tokens observed", "turns a session", "waits are not known", "Prefixes that sessions share"):
        assert part in text
    told = json.loads(answer("describe", recorded, "--json", "--tokens-per-s", "10"))
    assert (told["sessions"], told["turns"], told["groups"]) == (12, 30, 6)
    assert told["waits"]["tokens_per_s"] == 10


def test_fitted_laws_draw_sessions(recorded: Path, tmp_path: Path) -> None:
    laws, drawn, again = (tmp_path / name for name in ("laws.json", "drawn.parquet", "again.parquet"))
    assert "Waits known:" in answer("fit", recorded, "--out", laws)
    answer("sample", laws, "--out", drawn, "--prompts", "4", "--samples", "2", "--steps", "3")
    sessions = read_sessions(drawn)
    assert (len(sessions), set(sessions.step.tolist())) == (24, {0, 1, 2})
    answer(
        "sample",
        recorded,
        "--out",
        again,
        "--n",
        "5",
        "--law",
        "wait_s=7",
        "--law",
        "turns=constant(value=3)",
    )
    sessions = read_sessions(again)
    assert sessions.turns.tolist() == [3] * 5
    assert set(sessions.wait_s[~sessions.last].tolist()) == {7.0}


def test_convert_keeps_waits_and_assumes_those_that_are_missing_if_told(
    recorded: Path, tmp_path: Path
) -> None:
    plain, filled = tmp_path / "plain.jsonl", tmp_path / "filled.parquet"
    answer("convert", recorded, plain, "--kind", "rollout", "--model", "a model")
    assert np.isnan(read_sessions(plain).wait_s).any()
    text = answer("convert", recorded, filled, "--law", "wait_s=exponential(mean=2)")
    assert "assumed" in text
    sessions = read_sessions(filled)
    assert not np.isnan(sessions.wait_s).any()
    assert (sessions.wait_s == 1.5).sum() == 20


def test_options_of_the_other_kind_are_refused(recorded: Path, tmp_path: Path) -> None:
    assert "the file has turns" in refusal("describe", recorded, "--cap", "5")
    assert "the file has no turns" in refusal("describe", "r1-client66", "--tokens-per-s", "5")
    assert "did you mean 'wait_s'?" in refusal(
        "sample", recorded, "--out", tmp_path / "x.csv", "--n", "3", "--law", "waits=1"
    )
    assert "wait_s alone" in refusal("convert", recorded, tmp_path / "x.csv", "--law", "turns=1")
    assert "FIELD=LAW" in refusal("convert", recorded, tmp_path / "x.csv", "--law", "turns")


def test_sessions_that_come_with_the_package(tmp_path: Path) -> None:
    told = json.loads(answer("describe", "office-work", "--json"))
    assert (told["sessions"], told["turns"]) == (45, 1_545)
    assert (told["waits"]["known"], told["waits"]["turns"]) == (1_500, 1_500)
    assert told["kind"] == "serving"
    out = tmp_path / "drawn.parquet"
    answer("sample", "office-work", "--out", out, "--n", "100")
    sessions = read_sessions(out)
    assert sessions.origin.licence == "Apache-2.0"
    assert 25 < sessions.turns.mean() < 45  # recorded: 34.3
