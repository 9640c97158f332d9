"""Figures of sessions, worked out by hand on two of them."""

import math

import pytest

from tlt.traces.lengths.schema import Origin
from tlt.traces.sessions.build import from_structs
from tlt.traces.sessions.describe import describe_sessions
from tlt.traces.sessions.turns import Session, Turn

ORIGIN = Origin(source="written here", kind="rollout")
TWO = [
    Session(
        turns=(
            Turn(input_tokens=500, response_tokens=80, wait_s=3.0, end="tool", blocks=(1,)),
            Turn(input_tokens=100, response_tokens=20, wait_s=1.0, end="stop", blocks=(1, 2)),
        )
    ),
    Session(sample=1, turns=(Turn(input_tokens=600, response_tokens=50, end="length", blocks=(1, 3)),)),
]


def test_tokens_waits_and_prefixes() -> None:
    told = describe_sessions(from_structs(TWO, ORIGIN, block_tokens=512), tokens_per_s=25.0)
    assert (told.sessions, told.turns, told.groups, told.steps) == (2, 3, 1, 1)
    assert (told.decoded_tokens, told.observed_tokens) == (150, 100)
    assert told.turns_per_session.mean == 1.5
    assert told.ends == {"stop": 1, "tool": 1, "length": 1}
    assert told.last_ends == {"stop": 1, "length": 1}
    assert (told.waits.turns, told.waits.known) == (1, 1)
    # The first session waits 3 + 1 s and decodes 100 tokens in 4 s.
    assert told.waits.waiting_share == pytest.approx(0.5)
    # Prompts of 500, 680 and 600 tokens, of which 580 of the second were kept.
    assert told.prefixes.prompt_tokens == 1_780
    assert told.prefixes.kept_share == pytest.approx(580 / 1_780)
    assert told.prefixes.reprefilled == pytest.approx(1_780 / 1_200)
    # First prompts of 500 and 600 tokens; the second begins with the first's block of 512.
    assert told.prefixes.shared_share == pytest.approx(512 / 1_100)
    assert told.prefixes.shortened == 0


def test_what_is_not_known_is_none() -> None:
    turns = (
        Turn(input_tokens=0, response_tokens=5, wait_s=math.nan),
        Turn(input_tokens=9, response_tokens=5),
    )
    told = describe_sessions(from_structs([Session(turns=turns)], ORIGIN))
    assert told.first_prompt_tokens is None
    assert (told.waits.turns, told.waits.known) == (1, 0)
    assert (told.waits.spread_s, told.waits.per_session_s, told.waits.waiting_share) == (None, None, None)
    assert told.prefixes.shared_share is None
    assert not told.waits.tokens_per_s_stated


def test_a_shortened_prompt_is_counted() -> None:
    turns = (Turn(input_tokens=9, response_tokens=5), Turn(input_tokens=1, response_tokens=5, kept_tokens=9))
    assert describe_sessions(from_structs([Session(turns=turns)], ORIGIN)).prefixes.shortened == 1
