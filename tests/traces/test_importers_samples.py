"""Each sample imports to exactly these rows, is told apart from the others, and says what was left out."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from tlt.traces.importers import IMPORTERS
from tlt.traces.importers.detect import detect
from tlt.traces.importers.folder import regular_files
from tlt.traces.importers.importing import import_trace
from tlt.traces.importers.reading.head import Head
from tlt.traces.importers.reading.items import Options
from tlt.traces.importers.reading.texts import tokeniser
from tlt.traces.importers.report import Report, Tally
from tlt.traces.lengths.schema import Trace

SAMPLES = Path(__file__).resolve().parents[2] / "traces" / "importers" / "samples"
BENCH = SAMPLES.parents[2] / "evidence" / "records" / "vllm_bench" / "result.json"
TEXTS = {"verl", "trl", "skyrl-eval", "roll", "verifiers-texts"}

# format -> (file or folder, rows of step, prompt, sample, prompt tokens, response tokens, truncated)
Row = tuple[int, int, int, int, int, bool]
ROWS: dict[str, tuple[str, list[Row]]] = {
    "areal": ("areal", [
        (3, 17, 0, 12, 120, False), (3, 17, 1, 12, 800, False), (3, 18, 0, 20, 40, False),
        (4, 19, 0, 15, 1024, False), (4, 19, 1, 15, 400, False),
    ]),
    "slime": ("slime/4.pt", [
        (4, 0, 0, 9, 48, False), (4, 0, 1, 9, 64, True), (4, 1, 0, 9, 21, False),
    ]),
    "nemo-rl": ("nemo_rl", [
        (7, 0, 0, 3, 10, False), (7, 0, 1, 3, 25, False), (7, 1, 0, 4, 4, False), (7, 1, 1, 4, 33, False),
    ]),
    "verl": ("verl/12.jsonl", [
        (12, 0, 0, 4, 7, False), (12, 0, 1, 4, 31, False), (12, 1, 0, 5, 12, False), (12, 1, 1, 5, 5, False),
    ]),
    "trl": ("trl", [
        (5, 0, 0, 4, 9, False), (5, 0, 1, 4, 40, False), (5, 1, 0, 3, 3, False), (5, 1, 1, 3, 17, False),
    ]),
    "skyrl-eval": ("skyrl", [(10, 0, 0, 4, 6, False), (10, 1, 0, 3, 50, True), (10, 1, 1, 3, 14, False)]),
    "roll": ("roll", [(2, 0, 0, 2, 8, False), (2, 0, 1, 2, 22, False), (2, 1, 0, 2, 2, False)]),
    "vllm-bench": ("vllm_bench", [
        (0, 0, 0, 12, 64, False), (0, 1, 0, 40, 128, False), (1, 1 << 32, 0, 9, 33, False),
    ]),
    "sglang-bench": ("sglang_bench", [
        (0, 0, 0, 10, 17, False), (0, 1, 0, 20, 128, False), (0, 2, 0, 30, 86, False),
    ]),
    "burstgpt": ("burstgpt", [(0, 2, 0, 472, 18, False), (0, 4, 0, 417, 276, False)]),
    "azure": ("azure", [(0, 2, 0, 374, 44, False), (0, 3, 0, 396, 109, False), (0, 4, 0, 879, 55, False)]),
    "mooncake": ("mooncake", [
        (0, 1, 0, 6755, 500, False), (0, 2, 0, 7322, 490, False), (0, 3, 0, 480, 26, False),
    ]),
    "qwen-bailian": ("requests/qwen_bailian.jsonl", [
        (0, 1, 0, 300, 120, False), (0, 2, 0, 200, 700, False), (0, 3, 0, 480, 90, False),
    ]),
    "batch-output": ("requests/batch_output.jsonl", [
        (0, 0, 0, 12, 64, False), (0, 1, 0, 20, 128, True), (0, 2, 0, 9, 33, False),
    ]),
    "aiperf": ("requests/profile_export.jsonl", [
        (0, 1, 0, 550, 90, False), (0, 2, 0, 300, 120, False), (0, 3, 0, 200, 45, False),
    ]),
    "guidellm": ("requests/benchmarks.json", [
        (0, 0, 0, 256, 128, False), (0, 1, 0, 250, 60, False), (1, 1 << 32, 0, 200, 77, False),
    ]),
    "llm-serving-sim": ("requests/llm_serving_sim.jsonl", [
        (0, 1, 0, 200, 50, False), (0, 2, 0, 201, 100, False), (0, 3, 0, 202, 150, False),
    ]),
    "llm-serving-sim-csv": ("requests/llm_serving_sim.csv", [
        (0, 2, 0, 200, 50, False), (0, 3, 0, 210, 100, False), (0, 4, 0, 220, 150, False),
    ]),
    "splitwise": ("requests/splitwise.csv", [
        (0, 2, 0, 374, 44, False), (0, 3, 0, 396, 109, False), (0, 4, 0, 879, 55, False),
    ]),
    "verifiers": ("requests/verifiers", [
        (0, 0, 0, 0, 6, False), (0, 0, 1, 0, 12, False), (0, 1, 0, 0, 30, True),
    ]),
    "agentic-mooncake": ("sessions/agentic_mooncake.jsonl", [
        (0, 1, 0, 100, 20, False), (0, 2, 0, 150, 30, False), (0, 3, 0, 64, 5, False),
        (0, 4, 0, 90, 9, False), (0, 5, 0, 120, 40, False),
    ]),
    "dynamo-trace": ("sessions/dynamo-request-trace.jsonl", [
        (0, 1, 0, 100, 20, False), (0, 3, 0, 160, 30, False), (0, 4, 0, 70, 7, True),
        (0, 5, 0, 80, 4, False),
    ]),
    "applied-compute": ("sessions/applied_compute.jsonl", [
        (0, 1, 0, 412, 100, False), (0, 2, 0, 100, 8, False),
    ]),
    "agentx": ("sessions/agentx.jsonl", [(0, 0, 0, 128, 10, False), (0, 1, 0, 192, 12, False)]),
    "verifiers-texts": ("requests/verifiers_texts", [
        (0, 0, 0, 5, 6, False), (0, 0, 1, 45, 12, False), (0, 1, 0, 3, 30, True),
    ]),
}  # fmt: skip
METRICS = {
    "verl-metrics": "verl_console.log", "trl-metrics": "metrics/trl.log",
    "slime-metrics": "metrics/slime.log",
    "skyrl-metrics": "metrics/skyrl.jsonl", "nemo-rl-metrics": "metrics/nemo_rl.jsonl",
    "roll-metrics": "metrics/roll.jsonl",
}  # fmt: skip
ARRIVALS = {
    "vllm-bench": [0.0, 0.5, 0.0],
    "burstgpt": [0.0, 113.0],
    "azure": [0.0, 4.314579, 4.541977],
    "mooncake": [0.0, 3.0, 3.5],
    "qwen-bailian": [0.0, 29.75, 299.5],
    "aiperf": [0.0, 0.5, 0.75],
    "guidellm": [0.0, 0.5, 0.0],
    "llm-serving-sim": [0.0, 0.25, 0.5],
    "llm-serving-sim-csv": [0.0, 0.25, 1.0],
    "splitwise": [0.0, 0.5, 1.25],
    "dynamo-trace": [0.0, 3.5, 1.0, 3.6],
}
SKIPPED: dict[str, tuple[str, int, str] | list[tuple[str, int, str]]] = {
    "batch-output": [
        ("several choices, whose tokens the usage adds up", 1, "batch_output.jsonl:4"),
        ("the request failed", 1, "batch_output.jsonl:5"),
    ],
    "aiperf": ("the request failed or was cancelled", 1, "profile_export.jsonl:4"),
    "guidellm": ("the request is incomplete", 1, "benchmarks.json:1"),
    "areal": ("a response of 0 tokens", 1, "rollout/3/18.jsonl:2"),
    "slime": ("status aborted: the response is not whole", 1, "4.pt:4"),
    "vllm-bench": ("the request failed", 1, "appended.json:1"),
    "burstgpt": ("a response of 0 tokens", 1, "BurstGPT_1.csv:3"),
    "applied-compute": ("lists of different lengths, or not of num_turns", 1, "applied_compute.jsonl:3"),
    "agentx": ("an entry that is no request of the session itself, as of a subagent", 1, "agentx.jsonl:1"),
}
REWARDS = {  # of formats that have them; each of these has hashes of its texts, too
    "areal": [1.0, 0.0, 1.0, -1.0, 1.0],
    "slime": [1.0, 0.0, 1.0],
    "nemo-rl": [1.0, 0.0, 1.0, 0.0],
    "verl": [1.0, 0.0, 1.0, 1.0],
    "trl": [1.0, 0.0, 1.0, 0.0],
    "skyrl-eval": [1.0, 0.0, 1.0],
    "roll": [1.0, 0.0, 1.0],
    "verifiers": [1.0, 1.0, 1.0],
    "verifiers-texts": [1.0, 1.0, 1.0],
}


def options(name: str, max_response_tokens: int | None = None) -> Options:
    """Return options with the tokenizer of the samples where the format needs one."""
    if name not in TEXTS:
        return Options(max_response_tokens)
    pytest.importorskip("tokenizers")
    return Options(max_response_tokens, tokenise=tokeniser(SAMPLES / "tokenizer.json"))


def imported(name: str) -> tuple[Trace, Report]:
    return import_trace(SAMPLES / ROWS[name][0], options(name))


@pytest.mark.parametrize("name", ROWS)
def test_a_sample_imports_to_these_rows(name: str) -> None:
    trace, report = imported(name)
    columns = ["step", "prompt_id", "sample", "prompt_tokens", "response_tokens", "truncated"]
    assert [tuple(row) for row in trace.rows[columns].itertuples(index=False)] == ROWS[name][1]
    assert report.format == name
    assert report.rows == len(ROWS[name][1])
    assert trace.origin.kind == IMPORTERS[name].kind
    if name in ARRIVALS:
        assert trace.rows["arrived_s"].tolist() == pytest.approx(ARRIVALS[name], abs=1e-6)
    else:
        assert "arrived_s" not in trace.rows
    assert trace.rows.get("reward", pd.Series()).tolist() == REWARDS.get(name, [])
    assert ("text_hash" in trace.rows) == (name in REWARDS)


def test_a_file_that_vllm_wrote_has_a_row_for_each_request() -> None:
    trace, report = import_trace(BENCH, options("vllm-bench"))
    assert report.format == "vllm-bench"
    assert (report.rows, list(report.skipped)) == (64, [])
    written = json.loads(BENCH.read_bytes())
    assert trace.rows["response_tokens"].tolist() == written["output_lens"]
    assert trace.rows["prompt_tokens"].tolist() == written["input_lens"]


def test_a_file_that_trl_wrote_is_read_as_its_steps_and_groups() -> None:
    trace, report = import_trace(SAMPLES / "trl_by_trl", options("trl"))
    assert report.format == "trl"
    assert (report.rows, list(report.skipped)) == (16, [])
    sizes = trace.rows.groupby(["step", "prompt_id"]).size()
    assert sizes.to_dict() == {(1, 0): 4, (1, 1): 4, (2, 2): 4, (2, 3): 4}
    assert trace.rows["reward"].tolist()[0] == -25.0 + 1.0  # of both of its functions
    words = {"The number together is 5.": 5, "Two is double three and six.": 6}  # the first two responses
    assert trace.rows["response_tokens"].tolist()[:2] == list(words.values())


@pytest.mark.parametrize("name", ROWS)
def test_what_a_sample_lacks_is_counted_and_shown(name: str) -> None:
    trace, report = imported(name)
    found = [(left.reason, left.count, left.first) for left in report.skipped]
    expected = SKIPPED.get(name, [])
    assert found == (expected if isinstance(expected, list) else [expected])
    assert report.lost == IMPORTERS[name].lost
    assert all(sentence in trace.origin.note for sentence in report.lost)


@pytest.mark.parametrize("name", [*ROWS, *METRICS])
def test_one_format_alone_claims_a_sample(name: str) -> None:
    path = SAMPLES / (ROWS[name][0] if name in ROWS else METRICS[name])
    files = regular_files(path, Tally())
    assert detect(files).name == name
    for file in files:
        if file.name == "aggregated_results.jsonl":
            continue
        head = Head(file)
        assert [one.name for one in IMPORTERS.values() if not one.detect(head)] == [name]


def test_every_format_has_a_sample() -> None:
    assert {*ROWS, *METRICS, "run-folder", "columns"} == set(IMPORTERS)


@pytest.mark.parametrize("name", ROWS)
def test_the_format_may_be_named(name: str) -> None:
    trace, _ = import_trace(SAMPLES / ROWS[name][0], options(name), name)
    assert len(trace.rows) == len(ROWS[name][1])


def test_versions_give_a_staleness() -> None:
    areal, slime = imported("areal")[1].staleness, imported("slime")[1].staleness
    assert areal is not None
    assert slime is not None
    # tail - head: 1, 2, 0, 2, 0
    assert (areal.responses, areal.mean, areal.max, areal.spanning_share) == (5, 1.0, 2, 0.6)
    # one version, 3 to 4, 4 twice
    assert (slime.responses, slime.max, round(slime.mean, 6)) == (3, 1, 0.333333)


def test_a_stated_cap_marks_what_reaches_it() -> None:
    trace, report = import_trace(SAMPLES / "areal", options("areal", max_response_tokens=1024))
    assert trace.origin.max_response_tokens == 1024
    assert trace.rows["truncated"].tolist() == [False, False, False, True, False]
    assert report.truncated == 1


def test_texts_longer_than_the_cap_are_set_to_it() -> None:
    trace, report = import_trace(SAMPLES / "verl", options("verl", max_response_tokens=30))
    assert trace.rows["response_tokens"].tolist() == [7, 30, 12, 5]
    assert trace.rows["truncated"].tolist() == [False, True, False, False]
    assert report.set_to_cap == 1


def test_files_that_are_not_read_are_counted() -> None:
    _, report = imported("skyrl-eval")
    (left,) = report.files_left_out
    assert (left.count, left.first) == (1, "global_step_10_evals/aggregated_results.jsonl")


def test_samples_are_small_and_described() -> None:
    described = (SAMPLES / "README.md").read_text()
    for file in regular_files(SAMPLES, Tally()):
        assert file.stat().st_size < 20_000
        assert file.relative_to(SAMPLES).parts[0].removesuffix("/") in described or file.name == "README.md"
