"""Exported tables: read by vLLM's own parser where it is installed, and by a stand-in where it is not."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.realrun.small_models import need_vllm
from tlt.commands import main
from tlt.realrun.engine import export_rules, vllm_compat
from tlt.realrun.engine.check_export import TABLE, VERL_DRAFTS, check_export
from tltsched.errors import InputError
from tltsched.policies import parse_policy
from tltsched.policies.table import TableConfig

RANGES = [[1, 8, 4], [9, 32, 2], [33, 64, 0]]


def written(tmp_path: Path, policy: str | None = "vllm_table:1-8=4+9-32=2+33-64=0", **changes: Any) -> Path:
    settings = {"method": "eagle3", "model": "head", "num_speculative_tokens": 4, TABLE: RANGES} | changes
    path = tmp_path / "table.json"
    path.write_text(json.dumps(settings), encoding="utf-8")
    if policy is not None:
        origin = json.dumps({"policy": policy, "more": 1})
        path.with_name("table.json.provenance.json").write_text(origin, encoding="utf-8")
    return path


@pytest.fixture
def without_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the check go on to the file where vLLM is not installed."""
    monkeypatch.setattr(vllm_compat, "installed_version", lambda: vllm_compat.VERSION)


def expanded(settings: dict[str, Any], most: int) -> list[int]:
    """Stand in for the parser: K by batch, the last one carried on."""
    by_batch = [0] + [k for first, last, k in settings[TABLE] for _ in range(first, last + 1)]
    return (by_batch + [by_batch[-1]] * most)[: most + 1]


@pytest.mark.usefixtures("without_vllm")
def test_a_table_is_told_as_the_engine_reads_it(tmp_path: Path) -> None:
    found = check_export(written(tmp_path), parse=expanded)
    assert found.ranges == ((1, 8, 4), (9, 32, 2), (33, 64, 0))
    assert found.policy == "vllm_table:1-8=4+9-32=2+33-64=0"
    assert "batch 33-64: off (K = 0)" in found.text()
    assert check_export(written(tmp_path), 16, expanded).ranges == ((1, 8, 4), (9, 16, 2))
    assert check_export(written(tmp_path), 100, expanded).ranges[-1] == (33, 100, 0)
    within: Any = json.loads(written(tmp_path).read_bytes())
    for key in reversed(VERL_DRAFTS):
        within = {key: within}
    (tmp_path / "table.json").write_text(json.dumps(within))
    assert check_export(tmp_path / "table.json", parse=expanded).ranges == found.ranges


@pytest.mark.usefixtures("without_vllm")
def test_a_table_that_is_read_otherwise_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="as its ranges"):
        check_export(written(tmp_path), parse=lambda _, most: [0] * (most + 1))
    with pytest.raises(InputError, match=r"as table\.json\.provenance\.json says"):
        check_export(written(tmp_path, "vllm_table:1-8=4"), parse=expanded)
    assert not check_export(_bare(tmp_path), parse=expanded).origin


def _bare(tmp_path: Path) -> Path:
    folder = tmp_path / "bare"
    folder.mkdir()
    return written(folder, None)


@pytest.mark.usefixtures("without_vllm")
@pytest.mark.parametrize(
    "ranges",
    [
        [[1, 8, 4], [16, 32, 2]],
        [[2, 8, 4]],
        [[1, 8, 4], [8, 9, 2]],
        [],
        None,
        [[1, 8]],
        [[1, 0, 2]],
        [[1, 100_000_000, 2]],
        [[1, 2**70, 1]],
    ],  # once 3 GB, and an OverflowError
)
def test_gaps_overlaps_and_other_forms_are_refused(ranges: Any, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=TABLE):
        check_export(written(tmp_path, **{TABLE: ranges}), parse=expanded)


@pytest.mark.usefixtures("without_vllm")
def test_a_file_that_is_no_json_object_is_refused(tmp_path: Path) -> None:
    for text in ("", "[]", "{"):
        (tmp_path / "t.json").write_text(text, encoding="utf-8")
        with pytest.raises(InputError, match="a JSON object"):
            check_export(tmp_path / "t.json", parse=expanded)


def test_without_the_engine_the_check_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_compat, "installed_version", lambda: "")
    with pytest.raises(InputError, match="no vllm"):
        check_export(written(tmp_path))


@pytest.mark.slow
def test_vllm_reads_the_table_as_it_was_meant(tmp_path: Path) -> None:
    need_vllm()
    found = check_export(written(tmp_path))
    assert found.reader == f"vLLM {vllm_compat.VERSION}"
    assert found.ranges == ((1, 8, 4), (9, 32, 2), (33, 64, 0))
    assert check_export(written(tmp_path), 100).ranges[-1] == (33, 100, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"method": "eagle4"}, "eagle4"),
        ({"num_speculative_tokenz": 4}, "num_speculative_tokenz"),
        ({"num_speculative_tokens": 0}, "greater than 0"),
        ({TABLE: [[1, 8, -4]]}, ">= 0"),
        ({"num_speculative_tokens": 2}, "as its ranges"),  # vLLM would cut every K to 2 in silence
    ],
)
def test_vllm_refuses_what_it_cannot_read(changes: dict[str, Any], told: str, tmp_path: Path) -> None:
    need_vllm()
    with pytest.raises(InputError, match=told):
        check_export(written(tmp_path, None, **changes))


def test_an_export_of_the_simulator_is_read_by_vllm(tmp_path: Path) -> None:
    need_vllm()
    out = tmp_path / "table.json"
    small = ("workload.steps=1", "workload.prompts_per_step=64", "hardware.gpus=2", "hardware.tp=1",
             "hardware.model=Qwen2.5-7B", "cost.source=vllm-0.32-h100-qwen2.5-7b",
             "acceptance.kind=geometric", "acceptance.rate=0.5")  # fmt: skip
    settings = [word for field in small for word in ("--set", field)]
    runner = CliRunner()
    made = runner.invoke(main.cli, ["sim", "export", *settings, "--format", "vllm", "--out", str(out)])
    assert made.exit_code == 0, made.output
    read = runner.invoke(main.cli, ["real", "check-export", str(out)])
    assert read.exit_code == 0, read.output
    policy = json.loads((tmp_path / "table.json.provenance.json").read_bytes())["policy"]
    assert policy.startswith("vllm_table:1-")
    assert f"`tlt real replay --policies`: {policy}" in read.output
    assert isinstance(parse_policy(policy), TableConfig)


ORIGIN = "vllm_table:1-8=4+9-32=2+33-64=0"
SGLANG = {"_comment": "x", "1": {"candidate_steps": [4]}, "9": {"candidate_steps": [2]},
          "33": {"candidate_steps": [0]}}  # fmt: skip
TRTLLM = {"speculative_config": {"decoding_type": "Eagle3", "max_draft_len": 4,
                                 "draft_len_schedule": {"8": 4, "32": 2, "64": 0}}}  # fmt: skip


def other(tmp_path: Path, settings: dict[str, Any], policy: str = ORIGIN) -> Path:
    path = tmp_path / "table.json"
    path.write_text(json.dumps(settings), encoding="utf-8")
    path.with_name("table.json.provenance.json").write_text(json.dumps({"policy": policy}), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("settings", "above", "reader"), [(SGLANG, 0, "rule of SGLang"), (TRTLLM, 0, "rule of TensorRT-LLM")]
)
def test_tables_of_other_engines_are_read_by_their_rule(
    tmp_path: Path, settings: dict[str, Any], above: int, reader: str
) -> None:
    found = check_export(other(tmp_path, settings), 100)
    assert found.ranges == ((1, 8, 4), (9, 32, 2), (33, 100, above))
    assert reader in found.text()
    assert found.origin
    with pytest.raises(InputError, match=r"as table\.json\.provenance\.json says"):
        check_export(other(tmp_path, settings, "vllm_table:1-9=4+10-32=2+33-64=0"))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"1": {"candidate_steps": [1, 3]}}, "with several SGLang chooses itself"),
        ({"1": {"steps": [1]}}, "candidate_steps"),
        ({"speculative_config": {"max_draft_len": 2, "draft_len_schedule": {"8": 4}}}, "max_draft_len = 2"),
        ({"speculative_config": {"max_draft_len": 2, "draft_len_schedule": {"8": 2, "9": 3}}}, "none above"),
        ({"speculative_config": {"max_draft_len": 2, "draft_len_schedule": {}}}, "batches from 1 on"),
        ({"speculative_config": {"draft_len_schedule": {"8": 2}}}, "max_draft_len"),
    ],
)
def test_what_those_engines_refuse_is_refused(tmp_path: Path, settings: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        check_export(other(tmp_path, settings))


def test_sglang_is_asked_itself_where_it_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, python = other(tmp_path, SGLANG), Path(sys.executable)
    with pytest.raises(InputError, match="No module named 'sglang'"):
        check_export(path, python=python)
    stand_in = tmp_path / "reader.py"
    monkeypatch.setattr(export_rules, "READER", stand_in)
    stand_in.write_text("print('[\"0.5\", [0, 4]]')", encoding="utf-8")
    assert check_export(path, 1, python=python).reader == "SGLang 0.5"
    stand_in.write_text("print('[\"0.5\", [0, 3]]')", encoding="utf-8")
    with pytest.raises(InputError, match="K by batch"):
        check_export(path, 1, python=python)
    with pytest.raises(InputError, match="an interpreter with sglang"):
        check_export(path, python=tmp_path / "none")
    with pytest.raises(InputError, match="leave it out"):
        check_export(other(tmp_path, TRTLLM), python=python)
