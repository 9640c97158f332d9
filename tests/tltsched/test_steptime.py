"""Step times by batch and context, inside and past the table."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tltsched.draft_config import OFF, chain
from tltsched.errors import InputError
from tltsched.policies.base import Batch
from tltsched.step_times import DraftConfigTimes, StepTimeTable

TABLE = StepTimeTable((DraftConfigTimes(OFF, (1.0, 2.0, 4.0), 0.5), DraftConfigTimes(chain(2), (3.0,))))


@pytest.mark.parametrize(
    ("requests", "context_tokens", "seconds"),
    [(0, 0, 1.0), (1, 0, 2.0), (2, 10, 9.0), (3, 0, 6.0), (5, 2, 11.0)],
)
def test_engine_step_is_fixed_part_plus_context_and_goes_on_straight(
    requests: int, context_tokens: int, seconds: float
) -> None:
    assert TABLE.engine_step_s(OFF, Batch(requests, context_tokens)) == seconds


def test_one_entry_serves_all_batches_and_a_falling_line_is_flat() -> None:
    assert TABLE.engine_step_s(chain(2), Batch(40, 10**6)) == 3.0
    assert DraftConfigTimes(OFF, (2.0, 1.0)).engine_step_s(Batch(9, 0)) == 1.0


def test_a_draft_config_without_times_is_named_with_those_that_have_some() -> None:
    with pytest.raises(
        InputError,
        match="got '4' for draft_config; allowed: a draft configuration with step times: off, 2",
    ):
        TABLE.engine_step_s(chain(4), Batch(1, 0))


@pytest.mark.parametrize("fixed_s", [(), (1.0, -1.0), (float("nan"),), (float("inf"),)])
def test_times_are_finite_and_not_negative(fixed_s: tuple[float, ...]) -> None:
    with pytest.raises(InputError, match="step times of draft configuration off"):
        DraftConfigTimes(OFF, fixed_s)


def test_a_draft_config_stands_once() -> None:
    with pytest.raises(InputError, match="each draft configuration once"):
        StepTimeTable((DraftConfigTimes(OFF, (1.0,)), DraftConfigTimes(OFF, (2.0,))))


@given(st.lists(st.floats(0, 1e3), min_size=1, max_size=5), st.integers(0, 9), st.integers(0, 10**6))
def test_a_table_survives_json(fixed_s: list[float], requests: int, context_tokens: int) -> None:
    table = StepTimeTable((DraftConfigTimes(chain(3), tuple(fixed_s), 1e-9),))
    again = msgspec.json.decode(msgspec.json.encode(table), type=StepTimeTable)
    batch = Batch(requests, context_tokens)
    assert again == table
    assert again.engine_step_s(chain(3), batch) == table.engine_step_s(chain(3), batch)
