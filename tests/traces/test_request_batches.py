"""Acceptance by batch out of drafts by request: worked out by hand."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pandas as pd

from tests.traces.doctor_runs import healthy
from tlt.traces.runs.batch_acceptance import read_batch_acceptance
from tlt.traces.runs.request_acceptance import ACCEPTANCE_COLUMNS, write_acceptance
from tlt.traces.runs.request_batches import batches_of_requests, begin_together
from tltsched.events import DecisionEnded

# Three requests of one worker draft in 10, 20 and 100 engine steps: batch 3 for 10, 2 for 10, 1 for 80.
RESPONSES = pd.DataFrame(
    {"step": 0, "request": [0, 1, 2], "worker": 4, "response_tokens": [20, 50, 400], "start_s": 1.5}
)
ROWS = pd.DataFrame(
    [(0, 0, 0, "4", 10, 40, 10), (0, 1, 0, "4", 20, 80, 40), (0, 2, 0, "4", 40, 160, 120),
     (0, 2, 128, "4", 60, 240, 60)],
    columns=list(ACCEPTANCE_COLUMNS),
)  # fmt: skip


def test_ranges_of_batches_by_hand() -> None:
    """Rates are 1, 2 and 3 drafts an engine step, and of the last request 1 past its first 40."""
    found = batches_of_requests(ROWS.sample(frac=1, random_state=1), RESPONSES)
    assert found[["step", "worker"]].drop_duplicates().to_numpy().tolist() == [[0, 4]]
    cells = found.drop(columns=["step", "worker"]).to_numpy().tolist()
    assert cells == [
        [1.0, 80.0, 80.0, 20 * 3 + 60 * 1],
        [2.0, 10.0, 20.0, 10 * 2 + 10 * 3],
        [3.0, 10.0, 30.0, 10 * (1 + 2 + 3)],
    ]


def test_sums_are_kept_over_rollouts() -> None:
    other = ROWS.assign(step=1, request_steps=ROWS["request_steps"] * 2)
    rows = pd.concat([ROWS, other], ignore_index=True)
    found = batches_of_requests(rows, pd.concat([RESPONSES, RESPONSES.assign(step=1, worker=0)]))
    for name in ("request_steps", "accepted_tokens"):
        assert found[name].sum() == rows[name].sum()
    assert found.groupby("step")["engine_steps"].sum().to_dict() == {0: 100.0, 1: 200.0}


def test_requests_that_wait_do_not_begin_together() -> None:
    assert begin_together(RESPONSES)
    assert not begin_together(RESPONSES.assign(start_s=[1.5, 1.5, 1.6]))


def test_a_static_policy_that_decides_once_is_told_by_request(tmp_path: Path) -> None:
    run = healthy()
    run.left_out.add("engine_steps")
    run.events = [
        msgspec.structs.replace(event, requests=0, request_steps=200 * 4)
        if isinstance(event, DecisionEnded) else event
        for event in run.events
    ]  # fmt: skip
    folder = run.write(tmp_path)
    known = read_batch_acceptance(folder)
    assert known is not None
    assert known["falls"].all(), "without drafts by request nothing says at which batch"
    longest = run.responses.sort_values("response_tokens").tail(2)
    of_two = longest[["step", "request"]].assign(
        from_token=0, draft_config="4", request_steps=[10, 30], drafted_tokens=160, accepted_tokens=[10, 60]
    )
    write_acceptance(folder, of_two)
    rows = read_batch_acceptance(folder)
    assert rows is not None
    assert not rows["falls"].any()
    assert (rows["request_steps"].sum(), rows["accepted_tokens"].sum()) == (40, 70)
