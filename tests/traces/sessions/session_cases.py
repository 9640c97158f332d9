"""Sessions drawn by hypothesis, for the tests of this folder."""

import math

import hypothesis.strategies as st
import msgspec

from tlt.traces.lengths.schema import Origin
from tlt.traces.sessions.build import from_structs
from tlt.traces.sessions.schema import Sessions
from tlt.traces.sessions.turns import ENDS, Session, SessionLimits, Turn

ORIGIN = Origin(source="written here", kind="rollout", model="a model")


@st.composite
def turn_lists(draw: st.DrawFn, block_tokens: int) -> tuple[Turn, ...]:
    turns, context = [], 0
    for _ in range(draw(st.integers(1, 4))):
        kept = context if draw(st.booleans()) else draw(st.integers(0, context))
        inputs, response = draw(st.integers(0, 5_000)), draw(st.integers(1, 3_000))
        count = -(-(kept + inputs) // block_tokens)
        wait = draw(st.one_of(st.just(math.nan), st.floats(0, 1e4)))
        blocks = tuple(range(count)) if draw(st.booleans()) else ()
        end = draw(st.sampled_from(ENDS))
        turn = Turn(input_tokens=inputs, response_tokens=response, wait_s=wait, end=end)
        turns.append(msgspec.structs.replace(turn, kept_tokens=kept, blocks=blocks))
        context = kept + inputs + response
    return tuple(turns)


@st.composite
def session_sets(draw: st.DrawFn) -> Sessions:
    block_tokens, arrive = draw(st.sampled_from([1 << 9, 1 << 4])), draw(st.booleans())
    count = draw(st.integers(1, 5))
    made = [
        Session(
            step=draw(st.integers(0, 3)),
            prompt_id=draw(st.integers(-(2**63), 2**63 - 1)),
            sample=index,
            arrived_s=draw(st.floats(0, 1e6)) if arrive else None,
            turns=draw(turn_lists(block_tokens)),
        )
        for index in range(count)
    ]
    limits = SessionLimits(max_turns=draw(st.none() | st.integers(4, 9)))
    return from_structs(made, ORIGIN, limits, block_tokens if draw(st.booleans()) else 0)
