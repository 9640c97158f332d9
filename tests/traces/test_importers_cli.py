from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.traces.trace_command import answer, refusal
from tlt.traces.importers import IMPORTERS
from tlt.traces.lengths.files import read_trace

SAMPLES = Path(__file__).resolve().parents[2] / "traces" / "importers" / "samples"


@pytest.mark.parametrize("name", ["t.parquet", "t.csv", "t.jsonl.gz"])
def test_an_import_is_told_and_can_be_read_again(name: str, tmp_path: Path) -> None:
    text = answer("import", SAMPLES / "areal", "--out", tmp_path / name)
    for part in (
        "as areal: AReaL, lengths exact", "5 responses, 3 prompts, 2 steps of 3 files; RL rollout lengths",
        "at most 2 policy updates", "1 x a response of 0 tokens; first rollout/3/18.jsonl:2",
        "note: A step is a tail_version",
    ):  # fmt: skip
        assert part in text
    trace_read = read_trace(tmp_path / name)
    assert trace_read.rows["response_tokens"].tolist() == [120, 800, 40, 1024, 400]
    assert (
        "Imported from AReaL (areal), lengths exact: 5 responses, 1 records left out"
        in trace_read.origin.note
    )
    assert "mean" in answer("describe", tmp_path / name)


def test_json_holds_what_was_left_out(tmp_path: Path) -> None:
    told = json.loads(answer("import", SAMPLES / "slime", "--out", tmp_path / "t.parquet", "--json"))
    assert (told["format"], told["rows"], told["truncated"]) == ("slime", 3, 1)
    assert told["skipped"] == [
        {
            "reason": "status aborted: the response is not whole",
            "count": 1,
            "first": "4.pt:4",
            "excerpt": "sample 4",
        }
    ]
    assert told["staleness"]["max"] == 1


def test_phase_times_are_written_beside_the_trace(tmp_path: Path) -> None:
    out, phases = tmp_path / "t.parquet", tmp_path / "p.json"
    text = answer("import", SAMPLES / "verl_console.log", "--out", out, "--phases", phases)
    assert "generated lengths, not a recorded run" in text
    assert "phase times, measured by verl, 2 steps" in text
    assert "gen: mean 34.50 s, sd 2.83 s (timing_s/gen)" in text
    told = json.loads(phases.read_bytes())
    assert told["kind"] == "measured"
    assert told["phases"]["gen"]["values_s"] == [36.5, 32.5]
    again = ("import", SAMPLES / "verl_console.log", "--out", tmp_path / "u.parquet", "--phases", phases)
    assert "a name that is free" in refusal(*again)
    answer(*again, "--force")
    assert "another file than --out" in refusal(*again[:-1], tmp_path / "u.parquet", "--force")


def test_nothing_is_written_over_or_after_an_error(tmp_path: Path) -> None:
    out = tmp_path / "t.parquet"
    assert "add --tokenizer FILE" in refusal("import", SAMPLES / "verl", "--out", out)
    assert not out.exists()
    answer("import", SAMPLES / "azure", "--out", out)
    assert "add --force" in refusal("import", SAMPLES / "azure", "--out", out)
    assert "phase times" in refusal(
        "import", SAMPLES / "azure", "--out", out, "--force", "--phases", tmp_path / "p"
    )


def test_a_tokenizer_that_is_none_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    arguments = ("import", SAMPLES / "verl", "--out", tmp_path / "t.parquet", "--tokenizer")
    assert "a tokenizer.json" in refusal(*arguments, tmp_path / "none.json")
    assert "a tokenizer.json" in refusal(*arguments, SAMPLES / "verl" / "12.jsonl")
    assert "4 responses" in answer(*arguments, SAMPLES / "tokenizer.json")


def test_step_is_for_files_that_do_not_say_it(tmp_path: Path) -> None:
    out = tmp_path / "t.parquet"
    answer("import", SAMPLES / "mooncake", "--out", out, "--step", "8")
    assert set(read_trace(out).rows["step"]) == {8}
    answer("import", SAMPLES / "areal", "--out", out, "--step", "8", "--force")
    assert set(read_trace(out).rows["step"]) == {3, 4}


def test_formats_lists_every_format_with_its_setting_and_losses() -> None:
    text = answer("formats")
    told = json.loads(answer("formats", "--json"))
    assert [one["name"] for one in told] == list(IMPORTERS)
    for one in IMPORTERS.values():
        assert one.lost
        for part in (one.name, one.written_by, f"lengths {one.lengths}", *one.lost):
            assert part in text
