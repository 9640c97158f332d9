"""The committed engine steps over one and two GPUs, and what is made of them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from evidence import two_gpus
from evidence.recording import HERE, load_all
from evidence.training_before import Before
from evidence.training_before import two_gpus as predicted
from evidence.two_gpus import DATA, PREDICTED, Row, allreduce_s, decode_rows, figures_of, is_met, mixed_rows
from tlt.traces.runs.runfolder import read_struct
from tltsched.errors import InputError


def test_medians_are_those_of_the_repeats() -> None:
    """Three repeats of batch 1 at 512 tokens over two GPUs: 3.280, 3.191 and 3.291 ms."""
    rows = {(row.batch, row.context_tokens): row for row in decode_rows()}
    assert len(rows) == 6
    assert rows[1, 512].measured_s[1] == pytest.approx(3.2804763749822996e-3, rel=1e-12)
    assert rows[1, 512].predicted_s == 3.741e-3
    beside = {(row.batch, row.prompt_tokens): row for row in mixed_rows()}
    assert len(beside) == 12
    assert list(beside[8, 256].measured_s) == pytest.approx([11.430e-3, 23.864e-3], abs=1e-6)


def test_what_was_committed_before_the_run_is_the_law_of_today() -> None:
    """So that its errors speak of the roofline as it is; each step is that of K of an engine that drafts."""
    before = read_struct(PREDICTED, Before)
    assert before.made < "2026-11-29T07"
    assert before.two_gpus == predicted()
    plain = {(row.batch, row.context_tokens): row for row in decode_rows()}
    for step in before.two_gpus:
        if step.k == 0 and (step.batch, step.context_tokens) in plain:
            row = plain[step.batch, step.context_tokens]
            # Less its drafter's one pass, and at the tokens that came while it was timed: 31 of 512 at most.
            assert step.seconds - two_gpus.law_of(2).off_s == pytest.approx(row.roofline_s[1], rel=3e-3)


def test_an_allreduce_by_hand() -> None:
    """28 layers make 56 all-reduces of 10 us by the roofline. Where TP 2 saves 56 us less, each takes 11."""
    row = Row(batch=1, context_tokens=512, prompt_tokens=0, measured_s=(5e-3, 4e-3), roofline_s=(5e-3, 4e-3))
    assert allreduce_s(row) == pytest.approx(10e-6)
    slower = msgspec.structs.replace(row, measured_s=(5e-3, 4e-3 + 56e-6))
    assert allreduce_s(slower) == pytest.approx(11e-6)
    # 112 us that the weights take less at TP 1 are 56 us at TP 2, that TP 2 then does not save.
    sooner = msgspec.structs.replace(row, measured_s=(5e-3 - 112e-6, 4e-3 - 56e-6))
    assert allreduce_s(sooner, bandwidth=True) == pytest.approx(10e-6)


def test_the_record_is_what_the_repeats_say() -> None:
    decode, mixed = decode_rows(), mixed_rows()
    record = load_all(HERE)["two_gpus"]
    values = figures_of(decode, mixed)
    assert record.value == values
    assert record.how == two_gpus.how(values, decode, mixed)
    assert record.met is is_met(values, mixed) is False
    assert is_met(values, []), "decode alone is near enough"
    assert (HERE / "two_gpus.md").read_text(encoding="utf-8") == two_gpus.table_of([*decode, *mixed])


def test_the_files_name_no_folder_of_the_machine_and_a_broken_one_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for tp in two_gpus.TPS:
        header = json.loads((DATA / f"tp{tp}.points.jsonl").read_bytes().splitlines()[0])
        assert "/" not in header["settings"]
    monkeypatch.setattr(two_gpus, "DATA", tmp_path)
    (tmp_path / "tp1.points.jsonl").write_text('{"type":"block"}\n', encoding="utf-8")
    with pytest.raises(InputError, match="allowed: lines of a calibration"):
        two_gpus.lines_of(1)
