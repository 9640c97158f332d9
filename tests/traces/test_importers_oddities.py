"""What frameworks and editors do to files: lists of one, NaN, byte order marks, missing keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tlt.traces.importers import report
from tlt.traces.importers.importing import import_trace
from tlt.traces.importers.reading import lines
from tlt.traces.importers.reading.items import Options
from tlt.traces.importers.reading.values import excerpt_of, number_in, text_of, whole
from tlt.traces.importers.report import Report, Tally
from tlt.traces.lengths.schema import Trace
from tltsched.errors import InputError

AREAL = {"task_id": 1, "sample_idx": 0, "seqlen": 30, "prompt_len": 10, "head_version": 0, "tail_version": 0}


def words(texts: Any) -> list[int]:
    return [len(text.split()) for text in texts]


def imported(path: Path, text: str | bytes, **options: Any) -> tuple[Trace, Report]:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return import_trace(path, Options(tokenise=words, **options))


def lines_of(*records: dict[str, Any]) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def test_a_byte_order_mark_crlf_and_blank_lines_change_nothing(tmp_path: Path) -> None:
    text = "\ufeff" + lines_of(AREAL, AREAL | {"sample_idx": 1}).replace("\n", "\r\n\r\n")
    trace, found = imported(tmp_path / "1.jsonl", text.removesuffix("\r\n"))
    assert trace.rows["response_tokens"].tolist() == [20, 20]
    assert not found.skipped


def test_nan_as_python_writes_it_is_read(tmp_path: Path) -> None:
    text = lines_of(AREAL | {"reward": float("nan")}, AREAL | {"sample_idx": 1, "reward": float("-inf")})
    assert "NaN" in text
    assert len(imported(tmp_path / "1.jsonl", text)[0].rows) == 2


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"seqlen": None}, "seqlen is missing or of another type"),
        ({"seqlen": "30"}, "seqlen is missing or of another type"),
        ({"seqlen": True}, "seqlen is missing or of another type"),
        ({"seqlen": 30.5}, "seqlen is missing or of another type"),
        ({"seqlen": 10**400}, "a response length out of range"),
        ({"seqlen": 10**15}, "a response length out of range"),
        ({"prompt_len": -1}, "a prompt length out of range"),
        ({"prompt_len": 31}, "prompt_len above seqlen"),
        ({"prompt_len": 30}, "a response of 0 tokens"),
        ({"tail_version": -4}, "a step out of range"),
        ({"sample_idx": -1}, "an index in its group out of range"),
        ({}, "a repeated step, prompt and sample"),
    ],
)
def test_a_record_that_gives_no_row_is_counted_with_its_place(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    trace, found = imported(tmp_path / "1.jsonl", lines_of(AREAL, AREAL | change))
    assert len(trace.rows) == 1
    (left,) = found.skipped
    assert (left.reason, left.count, left.first) == (reason, 1, "1.jsonl:2")


def test_if_nothing_is_left_the_reasons_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"3 x a response of 0 tokens \(first 1.jsonl:1"):
        imported(tmp_path / "1.jsonl", lines_of(*[AREAL | {"prompt_len": 30}] * 3))


def test_lists_of_one_are_their_element(tmp_path: Path) -> None:
    row = {"input_lengths": [5], "token_loss_mask": [[0, 0, 1, 1, 1]], "token_ids": [[4, 5, 6, 7, 8]]}
    flat = {"input_lengths": 5, "token_loss_mask": [0, 0, 1.0, 1.0, 0], "token_ids": [4, 5, 6, 7, 8]}
    other = {"input_lengths": 1, "token_loss_mask": [1], "token_ids": [9]}
    trace, _ = imported(tmp_path / "train_data_step3.jsonl", lines_of(row, flat, other))
    assert trace.rows["response_tokens"].tolist() == [3, 2, 1]
    assert trace.rows["prompt_tokens"].tolist() == [2, 3, 0]
    assert trace.rows["step"].tolist() == [3, 3, 3]


def test_nemo_rl_groups_by_the_tokens_before_the_first_trained_one(tmp_path: Path) -> None:
    def row(ids: list[int], mask: list[int]) -> dict[str, Any]:
        return {"input_lengths": len(ids), "token_loss_mask": mask, "token_ids": ids}

    rows = [row([1, 2, 7], [0, 0, 1]), row([1, 2, 8], [0, 0, 1]), row([12, 7, 7], [0, 0, 1])]
    trace, _ = imported(tmp_path / "train_data_step1.jsonl", lines_of(*rows))
    assert trace.rows["prompt_id"].tolist() == [0, 0, 1]
    assert trace.rows["sample"].tolist() == [0, 1, 0]


def test_a_line_beyond_the_bound_is_skipped_and_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "CHUNK_BYTES", 64)
    path = tmp_path / "long.jsonl"
    path.write_bytes(b"x" * 1000 + b"\nshort\n" + b"y" * 100)
    found = [(line.number, line.too_long) for line in lines.iter_lines(path, 100)]
    assert found == [(1, True), (2, False), (3, True)]


def test_chat_lists_are_their_contents(tmp_path: Path) -> None:
    chat = [{"role": "assistant", "content": "one two"}, {"role": "tool", "content": "three"}]
    parts = [{"role": "user", "content": [{"type": "text", "text": "a b"}, {"type": "image"}]}]
    rows = [
        {"input": "q", "output": chat, "step": 1, "score": 0},
        {"input": parts, "output": "x", "step": 1, "score": 0},
        {"input": "q", "output": 7, "step": 1, "score": 0},
    ]
    trace, found = imported(tmp_path / "1.jsonl", lines_of(*rows))
    assert trace.rows["response_tokens"].tolist() == [3, 1]
    assert trace.rows["prompt_tokens"].tolist() == [1, 2]
    assert found.skipped[0].first == "1.jsonl:3"


def test_trl_completions_may_be_text_or_chats_and_rows_may_lack_them(tmp_path: Path) -> None:
    path = tmp_path / "completions_00012.parquet"
    pd.DataFrame({"prompt": ["a", "a", "b"], "completion": ["x y", "z", None]}).to_parquet(path)
    trace, found = import_trace(path, Options(tokenise=words))
    assert trace.rows["response_tokens"].tolist() == [2, 1]
    assert trace.rows["step"].tolist() == [12, 12]
    assert (found.skipped[0].count, found.skipped[0].first) == (1, "completions_00012.parquet:3")


def test_texts_without_a_tokenizer_are_refused_with_the_remedy(tmp_path: Path) -> None:
    path = tmp_path / "1.jsonl"
    path.write_text(lines_of({"input": "q", "output": "x", "step": 1, "score": 0}))
    with pytest.raises(InputError, match="add --tokenizer FILE"):
        import_trace(path, Options())


def test_indented_and_concatenated_benchmark_results_are_read(tmp_path: Path) -> None:
    run = {"model_id": "m", "input_lens": [1, 2], "output_lens": [3, 4], "errors": ["", ""]}
    path = tmp_path / "r.json"
    text = json.dumps(run, indent=2) + json.dumps(run, indent=2) + "\n"
    assert imported(path, text)[0].rows["step"].tolist() == [0, 0, 1, 1]


def test_a_result_without_details_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="saved without details"):
        imported(tmp_path / "r.json", json.dumps({"model_id": "m", "total_output_tokens": 4}))


def test_a_cap_below_an_exact_length_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"response_tokens in 1.jsonl:2; allowed: at most the stated cap, 25"
    ):
        imported(tmp_path / "1.jsonl", lines_of(AREAL, AREAL | {"seqlen": 40}), max_response_tokens=25)


def test_steps_come_from_names_and_are_read_in_order(tmp_path: Path) -> None:
    row = {"input": "q", "output": "x", "score": 0}
    for name in ("10", "9", "x"):
        (tmp_path / f"{name}.jsonl").write_text(lines_of(row | {"step": None}))
    trace, found = import_trace(tmp_path, Options(tokenise=words))
    assert trace.rows["step"].tolist() == [9, 10]
    assert found.files_left_out[0].first == "x.jsonl"


def test_evaluation_rollouts_are_left_out_of_training_ones(tmp_path: Path) -> None:
    for kind in ("rollout", "eval-rollout"):
        (tmp_path / kind / "5").mkdir(parents=True)
        (tmp_path / kind / "5" / "1.jsonl").write_text(lines_of(AREAL | {"tail_version": None}))
    trace, found = import_trace(tmp_path, Options(), "areal")
    assert trace.rows["step"].tolist() == [5]
    assert found.files_left_out[0].first == "eval-rollout/5/1.jsonl"


def test_several_formats_or_none_are_refused_with_the_nearest(tmp_path: Path) -> None:
    both = AREAL | {"timestamp": 1, "input_length": 1, "output_length": 1}
    with pytest.raises(InputError, match=r"areal, mooncake.*add --format NAME"):
        imported(tmp_path / "1.jsonl", lines_of(both))
    with pytest.raises(InputError, match=r"nearest to verl, but: no field output.*peek 1\.jsonl"):
        imported(tmp_path / "1.jsonl", lines_of({"input": 1, "score": 2, "step": 3}))
    with pytest.raises(InputError, match="nothing that is known"):
        imported(tmp_path / "1.jsonl", lines_of({"a": 1}))
    with pytest.raises(InputError, match="UTF-16: convert it to UTF-8"):
        imported(tmp_path / "1.jsonl", lines_of(AREAL).encode("utf-16"))


def test_an_unknown_format_names_the_nearest(tmp_path: Path) -> None:
    (tmp_path / "1.jsonl").write_text(lines_of(AREAL))
    with pytest.raises(InputError, match="did you mean 'areal'"):
        import_trace(tmp_path / "1.jsonl", Options(), "arael")


def test_reasons_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "MOST_REASONS", 2)
    tally = Tally()
    for reason in "abcd":
        tally.add(reason, "f:1", "")
    assert {left.reason: left.count for left in tally.most_first()} == {"a": 1, "b": 1, "other reasons": 2}


def test_excerpts_cannot_act_on_a_terminal() -> None:
    shown = excerpt_of("\x1b[31m\u202e\0 d\xe9j\xe0 ".encode() + b"\xff" * 500)
    assert shown.startswith(r"\x1b[31m\u202e\x00 d" + "\xe9j\xe0")
    assert len(shown) == 120
    assert shown.isprintable()


@pytest.mark.parametrize(
    ("text", "value"),
    [("np.float64(3.5)", 3.5), ("np.int32(7)", 7.0), ("tensor(2.0)", 2.0), ("1e3", 1000.0), ("nan", None),
     ("inf", None), ("", None), ("x", None), ("tensor(4., device='cuda:0')", 4.0)],
)  # fmt: skip
def test_numbers_of_logs(text: str, value: float | None) -> None:
    assert number_in(text) == value


def test_values() -> None:
    assert [whole(v) for v in ([[3]], 3.0, "3", True, [1, 2], 2.0**60, None)] == [
        3,
        3,
        None,
        None,
        None,
        None,
        None,
    ]
    assert text_of([{"role": "assistant", "tool_calls": []}]) == ""
    assert text_of({"content": "x"}) is None


def test_reasoning_tokens_of_aiperf_are_generated_too(tmp_path: Path) -> None:
    metrics = {
        "output_token_count": {"value": 9, "unit": "tokens"},
        "reasoning_token_count": {"value": 40, "unit": "tokens"},
        "input_sequence_length": {"value": 5, "unit": "ms"},
    }
    record = {"metadata": {"benchmark_phase": "profiling"}, "metrics": metrics, "error": None}
    warm = {"metadata": {"benchmark_phase": "warmup"}, "metrics": metrics, "error": None}
    trace, found = imported(tmp_path / "profile_export.jsonl", lines_of(record, warm))
    assert trace.rows[["response_tokens", "prompt_tokens"]].to_numpy().tolist() == [[49, 0]]
    assert [left.reason for left in found.skipped] == ["a request of the warm-up"]
