"""What a file states wins over every default: numbers of responses, units of time, turns, what tools said."""

from __future__ import annotations

import json
import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest

from tlt.traces.importers.importing import import_trace
from tlt.traces.importers.reading.items import Options
from tltsched.errors import InputError

LENGTHS = "response_length/mean:200.0 - response_length/max:512.0 - response_length/clip_ratio:0.125"
PROMPT = "prompt_length/mean:100.0"


def logged(folder: Path, *parts: str) -> Path:
    path = folder / "run.log"
    path.write_text(f"step:1 - {' - '.join((LENGTHS, *parts))}\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("parts", "responses"),
    [
        # 6.1 s over 0.635 ms a token are 9,606 response tokens, of 200 each: 48.03
        (("timing_s/gen:6.100", "timing_per_token_ms/gen:0.635"), 48),
        # 2.0 s over 0.139 ms are 14,388 tokens with prompts, of 300 each: 47.96
        ((PROMPT, "timing_s/update_actor:2.000", "timing_per_token_ms/update_actor:0.139"), 48),
        ((PROMPT, "perf/total_num_tokens:14400"), 48),
        ((PROMPT, "perf/total_num_tokens:14400", "timing_s/gen:6.100", "timing_per_token_ms/gen:0.635"), 48),
        # 0.001 ms may be anything between 0.0005 and 0.0015: the count of the tokens stands
        ((PROMPT, "perf/total_num_tokens:14400", "timing_s/adv:0.02", "timing_per_token_ms/adv:0.001"), 48),
    ],
)
def test_verl_states_the_number_of_responses(parts: tuple[str, ...], responses: int, tmp_path: Path) -> None:
    trace, _ = import_trace(logged(tmp_path, *parts), Options())
    assert len(trace.rows) == responses


def test_a_number_that_is_not_stated_is_asked_for(tmp_path: Path) -> None:
    path = logged(tmp_path, PROMPT)
    with pytest.raises(InputError, match="add --responses N"):
        import_trace(path, Options())
    assert len(import_trace(path, Options(responses=32))[0].rows) == 32


def test_a_log_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    # seconds that are milliseconds: 6,100 "s" over 0.635 ms are 48,031 responses, the tokens say 48
    path = logged(
        tmp_path, PROMPT, "perf/total_num_tokens:14400", "timing_s/gen:6100", "timing_per_token_ms/gen:0.635"
    )
    with pytest.raises(InputError, match="another unit"):
        import_trace(path, Options())


def dump(folder: Path, *records: dict[str, object]) -> Path:
    path = folder / "1.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def test_what_tools_said_is_no_response(tmp_path: Path) -> None:
    said = "user\n<tool_response>\n" + "cell " * 300 + "\n</tool_response>\nassistant\n"
    two = "user\n<tool_response>\na b\n</tool_response>\n<tool_response>\nc\n</tool_response>\nassistant\n"
    record = {"input": "user\nquestion\nassistant\n", "gts": "4", "score": 1.0, "step": 1}
    path = dump(
        tmp_path,
        record | {"output": f"think about it {said}so four", "num_turns": 4},
        record | {"output": f"one {two}two", "num_turns": 4},
        record | {"output": "three words alone", "num_turns": 2},
        record | {"output": "think user\n<tool_response>\ncut off", "num_turns": 3},
        record | {"output": "a user\nyes\nassistant\nb", "num_turns": 4},  # who wrote what is not told
    )
    trace, report = import_trace(path, Options(tokenise=words))
    assert trace.rows["response_tokens"].tolist() == [5, 2, 3, 1]
    assert trace.rows["prompt_tokens"].tolist() == [3 + 304, 3 + 9, 3, 3 + 4]
    assert [(left.count, "several turns" in left.reason) for left in report.skipped] == [(1, True)]
    assert "3 responses have several turns" in " ".join(report.notes)


def requests(folder: Path, times: Sequence[float], **more: object) -> Path:
    path = folder / "requests.jsonl"
    lengths = {"input_length": 300, "output_length": 120, "hash_ids": [1]}
    path.write_text("".join(json.dumps({"timestamp": at, **lengths, **more}) + "\n" for at in times))
    return path


def test_times_of_bailian_are_seconds_and_those_of_mooncake_milliseconds(tmp_path: Path) -> None:
    times = (10.5, 40.25, 310.0, 610.5)
    trace, report = import_trace(requests(tmp_path, times, chat_id=1, turn=1), Options())
    assert report.format == "qwen-bailian"
    assert trace.rows["arrived_s"].tolist() == [0.0, 29.75, 299.5, 600.0]
    trace, report = import_trace(requests(tmp_path, (0, 3000, 3500)), Options())
    assert report.format == "mooncake"
    assert trace.rows["arrived_s"].tolist() == [0.0, 3.0, 3.5]
    with pytest.raises(InputError, match="times in seconds"):
        import_trace(requests(tmp_path, (0.5, 3.25)), Options())


def test_messages_of_others_are_no_completion(tmp_path: Path) -> None:
    ask = {"role": "user", "content": "what is it"}
    completion = [{"role": "assistant", "content": "let me look"}, {"role": "tool", "content": "cell " * 50},
                  {"role": "assistant", "content": "four"}]  # fmt: skip
    plain = [{"role": "assistant", "content": "just four"}]
    table = pd.DataFrame({"step": [1, 1], "prompt": [[ask], [ask]], "completion": [completion, plain]})
    table.to_parquet(tmp_path / "completions_00001.parquet")
    trace, report = import_trace(tmp_path / "completions_00001.parquet", Options(tokenise=words))
    assert trace.rows["response_tokens"].tolist() == [4, 2]
    assert trace.rows["prompt_tokens"].tolist() == [53, 3]
    assert "1 responses have several turns" in " ".join(report.notes)


@pytest.mark.parametrize(
    ("mask", "own"),
    [(None, 6), ([1] * 6, 6), ([1, 1, 0, 0, 0, 1], 3), ([0] * 6, 6), ([1, 0], 6), ([1, 0, 2, 1, 1, 1], 6)],
)
def test_masked_tokens_of_slime_are_those_of_tools(mask: list[int] | None, own: int, tmp_path: Path) -> None:
    sample = {"group_index": 0, "tokens": [5] * 10, "response_length": 6, "status": "completed",
              "loss_mask": mask}  # fmt: skip
    path = tmp_path / "4.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"rollout_id": 4, "samples": [sample]}))
    rows = import_trace(path, Options())[0].rows
    assert rows["response_tokens"].tolist() == [own]
    assert rows["prompt_tokens"].tolist() == [10 - own]
