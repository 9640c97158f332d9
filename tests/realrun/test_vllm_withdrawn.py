"""Requests that leave a live vLLM engine undone go on to the same text, on weights that were loaded again."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.realrun.small_models import KS, need_vllm, requests, run, tiny_config
from tlt.realrun.engine.vllm_engine import make_engine

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]

LENGTHS = [40, 25, 60]


def test_what_is_withdrawn_goes_on_to_the_same_text(tmp_path: Path) -> None:
    need_vllm()
    engine = make_engine(tiny_config(tmp_path), speculating=True)
    asked = requests(LENGTHS)
    run(engine, asked, KS)
    whole = engine.responses()
    engine.submit(asked)
    for _ in range(6):
        engine.step(2)
    kept = engine.withdraw([0, 2, 9])
    assert kept.keys() == {0, 2}, "of those that are there"
    assert all(0 < len(tokens) < LENGTHS[request] for request, tokens in kept.items())
    assert engine.pending() == 1
    while engine.pending():
        engine.step(1)
    assert engine.responses() == {1: whole[1]}

    engine.load_policy(engine.own_weights(), 1)  # as it was
    again = [msgspec.structs.replace(asked[request], resumed=tokens) for request, tokens in kept.items()]
    engine.submit(again)
    prompts, positions = 0, []
    while engine.pending():
        facts = engine.step(4)
        prompts += sum(prompt.tokens for prompt in facts.prompts)
        positions += [drafts.position for drafts in facts.drafts if drafts.request == 0]
    assert prompts == sum(len(each.context) for each in again), "all of the context is computed again"
    assert min(positions) > len(kept[0]), "drafts are told by their place in the whole response"
    rest = engine.responses()
    assert {request: tokens + rest[request] for request, tokens in kept.items()} == {
        0: whole[0],
        2: whole[2],
    }
    engine.close()
