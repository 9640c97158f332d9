"""A response with a seed does not depend on its batch, and speculation leaves its law alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evidence.lossless_sampling import compare
from tests.realrun.small_models import need_vllm, run, tiny_config
from tlt.realrun.engine import vllm_settings
from tlt.realrun.engine.protocol import EngineRequest
from tlt.realrun.engine.vllm_engine import VllmEngine, make_engine

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.slow,
]  # warnings of the engine's own libraries

PROMPT = tuple(range(1, 9))


def test_a_seeded_response_is_the_same_in_every_batch(tmp_path: Path) -> None:
    need_vllm()
    engine = make_engine(tiny_config(tmp_path, temperature=1.0), speculating=False)
    submitted = [EngineRequest(i, PROMPT, 40 + i, forced=i % 2 == 0, seed=100 + i) for i in range(8)]
    run(engine, submitted, (0,))
    together = engine.responses()
    for part in (submitted[:1], submitted[5:0:-1], submitted[6:]):
        run(engine, part, (0,))
        assert engine.responses() == {request.id: together[request.id] for request in part}
    assert len(set(together.values())) == len(submitted)
    engine.close()


def test_a_prompt_in_parts_does_not_move_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need_vllm()
    monkeypatch.setitem(vllm_settings.CHUNK_TOKENS, "cpu", 64)
    engine = make_engine(tiny_config(tmp_path, temperature=1.0), speculating=False)
    prompts = [tuple(range(1 + i, 51 + i)) for i in range(4)]
    submitted = [EngineRequest(i, prompt, 20, seed=100 + i) for i, prompt in enumerate(prompts)]
    facts = run(engine, submitted, (0,))
    assert sum(each.prompt_tokens > 0 for each in facts) > 2, "the prompts did not fit one engine step"
    together = engine.responses()
    for request in submitted:
        run(engine, [request], (0,))
        assert engine.responses() == {request.id: together[request.id]}
    engine.close()


def test_seeded_sampling_with_speculation_has_the_same_law(tmp_path: Path) -> None:
    need_vllm()
    config = tiny_config(tmp_path, vocab=64, temperature=1.0, max_running=64)
    plain, speculating = make_engine(config, speculating=False), make_engine(config, speculating=True)
    one, none_accepted = _sample(plain, (0,), 0)
    other, accepted = _sample(speculating, (4, 1, 2), 1_000_000)
    speculating.close()
    plain.close()
    assert (none_accepted, accepted > 100) == (0, True)
    verdict = compare(one, other, 64, 400, np.random.default_rng(0))
    assert min(verdict.p_tokens, verdict.p_pairs) > 0.002, verdict


def _sample(engine: VllmEngine, ks: tuple[int, ...], first_seed: int) -> tuple[np.ndarray, int]:
    """Return 768 responses of 7 tokens, [requests, tokens], and how many drafts were accepted."""
    rows: list[tuple[int, ...]] = []
    accepted = 0
    for first in range(first_seed, first_seed + 768, 64):
        facts = run(engine, [EngineRequest(i, PROMPT, 7, seed=first + i) for i in range(64)], ks)
        accepted += sum(sum(engine_step.accepted_by_position) for engine_step in facts)
        responses = engine.responses()
        rows += [responses[i] for i in range(64)]
    return np.array(rows, np.int64), accepted


def test_a_natural_response_ends_at_its_end_token_in_the_midst_of_accepted_drafts(tmp_path: Path) -> None:
    """The end token is kept: a trainer needs it to learn to stop."""
    need_vllm()
    config = tiny_config(tmp_path, "draft_model", vocab=64, temperature=1.0, max_running=32)
    engine = make_engine(config, speculating=True)
    facts = run(engine, [EngineRequest(i, PROMPT, 150, forced=False, seed=i) for i in range(32)], (4,))
    responses = engine.responses()
    engine.close()
    assert sum(sum(engine_step.accepted_by_position) for engine_step in facts) > 0
    ended = [tokens for tokens in responses.values() if len(tokens) < 150]
    assert ended
    assert all(tokens[-1] == 0 and 0 not in tokens[:-1] for tokens in ended)
