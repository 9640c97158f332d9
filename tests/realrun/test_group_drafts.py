"""Drafts from the other responses of a group: the store against a plain search, and the live lookup."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.realrun.small_models import need_vllm, run, tiny_config
from tlt.realrun.engine.group_drafts import RECENT, GroupDrafts
from tlt.realrun.engine.protocol import EngineRequest
from tlt.realrun.engine.vllm_engine import VllmEngine, make_engine

K = 4


def test_the_longest_match_in_another_member_is_drafted() -> None:
    drafts = GroupDrafts(shortest=2, longest=4)
    drafts.add(0, 0, [1, 2, 3, 4, 5, 6])
    drafts.add(0, 1, [9, 3, 4, 7])
    drafts.add(1, 0, [2, 3, 4, 8])
    drafts.add(0, 2, [2, 3, 4])
    assert drafts.propose(0, 2, 3) == [5, 6]  # three tokens match in member 0, two in member 1
    assert drafts.propose(0, 2, 1) == [5]
    drafts.add(0, 2, [7])
    assert drafts.propose(0, 2, 3) == []  # member 1 ends there, and no own token counts
    drafts.add(0, 1, [8])
    assert drafts.propose(0, 2, 3) == [8]


def test_of_equal_matches_the_most_usual_continuation_is_drafted() -> None:
    drafts = GroupDrafts(shortest=2, longest=4)
    for member, follower in enumerate((5, 6, 5)):
        drafts.add(0, member, [1, 2, follower])
    drafts.add(0, 3, [1, 2])
    assert drafts.propose(0, 3, K) == [5]


def test_nothing_is_drafted_without_a_match_or_after_clearing() -> None:
    drafts = GroupDrafts()
    assert drafts.propose(0, 0, K) == []
    drafts.add(0, 0, [1, 2, 3])
    drafts.add(0, 1, [1])
    assert drafts.propose(0, 1, K) == []
    drafts.add(0, 1, [2])
    assert drafts.propose(0, 1, 0) == []
    assert drafts.propose(0, 1, K) == [3]
    drafts.clear()
    assert drafts.propose(0, 1, K) == []


@given(
    st.lists(st.lists(st.integers(0, 2), max_size=RECENT), min_size=2, max_size=4),
    st.integers(1, 3),
    st.integers(1, 5),
)
def test_a_draft_follows_a_longest_match(members: list[list[int]], shortest: int, k: int) -> None:
    drafts, longest = GroupDrafts(shortest, 4), 4
    for member, tokens in enumerate(members):
        for token in tokens:  # grown one by one
            drafts.add(0, member, [token])
    own = members[0]
    best, allowed = 0, [list[int]()]
    for tokens in members[1:]:
        for end in range(1, len(tokens)):
            most = min(longest, end, len(own))
            length = max(n for n in range(most + 1) if n == 0 or tokens[end - n : end] == own[-n:])
            if length < shortest or length < best:
                continue
            if length > best:
                best, allowed = length, []
            allowed.append(tokens[end : end + k])
    assert drafts.propose(0, 0, k) in allowed


def _accepted(engine: VllmEngine, first: EngineRequest, later: list[EngineRequest]) -> float:
    """Return the accepted share of drafts of `later`, which are generated after `first`."""
    run(engine, [first], (K,))
    facts = run(engine, later, (K,))
    accepted = sum(sum(engine_step.accepted_by_position) for engine_step in facts)
    return accepted / len(later) / sum(engine_step.batch > 0 for engine_step in facts)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_group_is_a_better_source_than_the_own_context(tmp_path: Path) -> None:
    """Greedy responses to one prompt are equal, so all that a finished one said is right."""
    need_vllm()
    config = tiny_config(tmp_path, "ngram")
    plain, engine = make_engine(config, speculating=False), make_engine(config, speculating=True)
    prompt, length = tuple(range(3, 40, 3)), 48

    def request(number: int, group: int) -> EngineRequest:
        return EngineRequest(number, prompt, length, group=group)

    run(plain, [request(0, -1)], (0,))
    text = plain.responses()[0]
    shares = {}
    for group in (-1, 5):
        shares[group] = _accepted(engine, request(0, group), [request(1, group), request(2, group)])
        assert engine.responses() == dict.fromkeys(range(3), text)
    assert shares[5] > 1.5 * shares[-1]
    engine.close()
    plain.close()
