"""Sessions as arrays: what follows from turns, and what is refused."""

import dataclasses
import math

import numpy as np
import pytest

from tlt.traces.lengths.schema import Origin
from tlt.traces.sessions.build import from_structs
from tlt.traces.sessions.schema import Blocks
from tlt.traces.sessions.turns import STOP, TOOL, Session, SessionLimits, Turn
from tltsched.errors import InputError

ORIGIN = Origin(source="written here", kind="generated", max_response_tokens=300)
CALL = Turn(input_tokens=500, response_tokens=80, wait_s=2.5, end="tool")
ANSWER = Turn(input_tokens=120, response_tokens=200, end="stop")


def test_prompts_grow_by_what_was_said_and_decoded() -> None:
    sessions = from_structs([Session(turns=(CALL, ANSWER)), Session(sample=1, turns=(CALL,))], ORIGIN)
    assert sessions.turns.tolist() == [2, 1]
    assert sessions.kept_tokens.tolist() == [0, 580, 0]  # 500 + 80
    assert sessions.prompt_tokens.tolist() == [500, 700, 500]  # 580 + 120
    assert sessions.context_tokens.tolist() == [580, 900, 580]
    assert sessions.first.tolist() == [True, False, True]
    assert sessions.last.tolist() == [False, True, True]
    assert sessions.session_of.tolist() == [0, 0, 1]
    assert sessions.per_session(sessions.response_tokens).tolist() == [280, 80]
    assert sessions.end.tolist() == [TOOL, STOP, TOOL]


def test_what_follows_a_shortened_prompt_counts_from_it() -> None:
    shortened = Turn(input_tokens=10, response_tokens=5, kept_tokens=100, end="tool")
    sessions = from_structs([Session(turns=(CALL, shortened, ANSWER))], ORIGIN)
    assert sessions.kept_tokens.tolist() == [0, 100, 115]


def test_structs_come_back() -> None:
    given = [Session(prompt_id=3, turns=(CALL, Turn(input_tokens=1, response_tokens=1, wait_s=math.nan)))]
    (back,) = list(from_structs(given, ORIGIN))
    assert back.turns[0] == Turn(input_tokens=500, response_tokens=80, wait_s=2.5, end="tool", kept_tokens=0)
    assert math.isnan(back.turns[1].wait_s)
    assert (back.step, back.prompt_id, back.sample, back.arrived_s) == (0, 3, 0, None)


def turn(**changes: object) -> Session:
    return Session(turns=(CALL, Turn(**{"input_tokens": 1, "response_tokens": 1} | changes)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sessions", "told"),
    [
        ([], "got 0 for sessions"),
        ([Session(turns=())], "got 0 for turns of session 0"),
        ([turn(response_tokens=0)], "got 0 for response_tokens in turn 1 of session 0; allowed: 1 to"),
        ([turn(response_tokens=221)], "got 301 for response_tokens of session 0, all turns"),
        ([turn(input_tokens=-1)], "got -1 for input_tokens in turn 1 of session 0"),
        ([turn(kept_tokens=581)], "got 581 for kept_tokens in turn 1 of session 0"),
        ([turn(wait_s=-1)], "got -1.0 for wait_s in turn 1"),
        ([turn(wait_s=math.inf)], "got inf for wait_s in turn 1"),
        ([turn(end="stopped")], "did you mean 'stop'?"),
        ([turn(), turn()], "got [0, 0, 0] for (step, prompt_id, sample)"),
        ([turn(), Session(sample=1, arrived_s=1.0, turns=(CALL,))], "got '1 of 2' for arrived_s"),
        ([Session(arrived_s=-1.0, turns=(CALL,))], "got -1.0 for arrived_s of session 0"),
        ([Session(step=-1, turns=(CALL,))], "got -1 for step"),
        ([turn(input_tokens=2**31 - 5), turn(input_tokens=2**31)], "got 2147483648 for input_tokens[3]"),
        ([turn(input_tokens=2**31 - 5)], "for context in turn 1 of session 0"),
    ],
)
def test_what_no_session_can_have_is_refused(sessions: list[Session], told: str) -> None:
    with pytest.raises(InputError) as refused:
        from_structs(sessions, ORIGIN)
    assert told in str(refused.value)


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        (SessionLimits(max_context_tokens=899), "got 900 for context in turn 1 of session 0"),
        (SessionLimits(max_turn_tokens=199), "got 200 for response_tokens in turn 1 of session 0"),
        (SessionLimits(max_turns=1), "got 2 for turns of session 0"),
    ],
)
def test_a_stated_cap_holds(limits: SessionLimits, told: str) -> None:
    with pytest.raises(InputError) as refused:
        from_structs([Session(turns=(CALL, ANSWER))], ORIGIN, limits)
    assert told in str(refused.value)


def test_blocks_are_those_of_the_whole_prompt() -> None:
    blocked = [
        Turn(input_tokens=500, response_tokens=80, blocks=(1,)),
        Turn(input_tokens=500, response_tokens=1, blocks=(1, 2, 3)),
    ]
    sessions = from_structs([Session(turns=tuple(blocked))], ORIGIN, block_tokens=512)
    assert sessions.blocks is not None
    assert sessions.blocks.ids.tolist() == [1, 1, 2, 3]
    few = Blocks(block_tokens=512, offsets=np.array([0, 1, 2]), ids=np.array([1, 1]))
    with pytest.raises(InputError, match="got 1 for blocks in turn 1 of session 0"):
        dataclasses.replace(sessions, blocks=few)
